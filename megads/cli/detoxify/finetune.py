"""``megads detoxify finetune``: step 4."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.request import EPILOG, FlagCommand, ManyWords, absolute, request_of
from megads.errors import ConfigError

if TYPE_CHECKING:
    from megads.config.sources.resolve import Resolved
    from megads.detoxify.finetune import Start

GIVEN = ("config", "env", "cli")
"""Layers of settings that are the user's."""
_NAMES = ("name", "dir")
_TOKENIZER = ("data.tokenizer_model", "data.vocab_file")


class FinetuneCommand(ManyWords, FlagCommand):
    """Takes every option of `megads train` that is a setting, and ``--data-path2 a b``."""


@click.command("finetune", cls=FinetuneCommand, epilog=EPILOG)
@click.argument("source", required=False, metavar="FILE")
@click.option("--data-path", "--input", "data_path", metavar="FILE", help="The same as FILE, as in Megatron-LM.")
@click.option("--load", metavar="SRC", help="The model: a run, checkpoints, a Hugging Face folder; or set LOAD.")
@click.option("--data-path2", "valid", multiple=True, metavar="PREFIX...", help="Token files to validate on; several.")
@click.option(
    "--set", "pairs", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting; may be repeated."
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes that encode.  [default: cores]")
@click.option("--dry-run", is_flag=True, help="Print the commands only.")
@click.option("--eval-ppl", "--log-validation-ppl-to-tensorboard", is_flag=True, hidden=True, help="Always reported.")
def finetune_texts(flags: Sequence[tuple[str, str]], **options: Any) -> None:
    """Train the model on FILE, filtered texts, with SGEAT's settings: `megads data preprocess`, then `megads train`.

    FILE may also be the prefix of token files. Settings are given as for `megads train`: GLOBAL_BATCH=64 in the
    environment, --lr 1e-5, --set train.train_iters=20.
    """
    from megads.cluster.ranks import find_ranks
    from megads.detoxify.finetune import preprocess_words, texts_of, train_words

    texts = texts_of(_source(options))
    found = _resolved(options["pairs"], flags)
    start = _start(options["load"] or found.run.checkpoint.load, found)
    given = {name for name, origin in found.origins.items() if origin.layer in GIVEN}
    has_tokenizer = bool(given & set(_TOKENIZER))
    tokenizer = _tokenizer(found) if has_tokenizer else start.tokenizer
    words = train_words(
        texts,
        start,
        tokenizer=None if has_tokenizer else tokenizer,
        valid=options["valid"],
        given=given | ({"name"} if given & set(_NAMES) else set()),
        own=_own_words(options["pairs"], flags),
    )
    commands = [["train", *words]]
    if not texts.is_made:
        if find_ranks(os.environ).world_size > 1 and not options["dry_run"]:
            raise ConfigError(
                f"{texts.source}: one process makes token files of it; run `megads data preprocess` first, or start "
                "this command once and let it start the ranks"
            )
        commands.insert(0, ["data", "preprocess", *preprocess_words(texts, tokenizer, options["workers"])])
    for command in commands:
        click.echo(shlex.join(["megads", *command]), err=not options["dry_run"])
    if not options["dry_run"]:
        for command in commands:
            _run(command)


def _source(options: dict[str, Any]) -> Path:
    if bool(options["source"]) == bool(options["data_path"]):
        raise ConfigError("pass the texts once, as the first word, e.g. texts-filtered.jsonl")
    return absolute(options["source"] or options["data_path"])


def _resolved(pairs: tuple[str, ...], flags: Sequence[tuple[str, str]]) -> Resolved:
    """Return the settings as far as they are known before the checkpoint is read."""
    from megads.cluster.machine import machine_name
    from megads.detoxify.finetune import SETTINGS
    from megads.launch.request import resolve_request

    request = request_of(str(SETTINGS), pairs, tuple(flags))
    machine = machine_name(request.hostname, request.env, request.root)
    return resolve_request(request, machine, needs_checkpoint=False)


def _start(load: str, found: Resolved) -> Start:
    """Return the model; one of another program is imported once, into the cache."""
    if not load:
        raise ConfigError("pass the model that wrote the texts: --load SRC, e.g. --load runs/7B")
    from megads.checkpoint.convert.pretrained import import_once, is_of_others
    from megads.detoxify.finetune import Start
    from megads.launch.finetune import STATED
    from megads.launch.supervise.watch import say

    folder = named = absolute(load)
    if is_of_others(folder):
        run = found.run
        stated = {name: getattr(run.model, name) for name in STATED if found.origins[f"model.{name}"].layer in GIVEN}
        cache = absolute(run.data.cache_dir)
        folder = import_once(folder.resolve(), cache, run.model.vocab_multiple, stated, say)
    return Start.of(folder, named)


def _tokenizer(found: Resolved) -> Any:
    from megads.data.tokenizers.build import spec_of

    return spec_of(found.run)


def _own_words(pairs: Sequence[str], flags: Sequence[tuple[str, str]]) -> list[str]:
    """Return the user's settings as words of a command line."""
    from megads.config.sources.flags import takes_of

    words = [word for pair in pairs for word in ("--set", pair)]
    return [*words, *(f"{name}={value}" if takes_of(name) else name for name, value in flags)]


def _run(command: list[str]) -> None:
    """Run a command of this program in this process, with its command line."""
    sys.argv = [sys.argv[0], *command]
    if command[0] == "train":
        from megads.cli.train import train

        train.main(command[1:], standalone_mode=False)
    else:
        from megads.cli.data.preprocess import preprocess

        preprocess.main(command[2:], standalone_mode=False)
