"""``megads detoxify generate``: step 1."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from megads.cli.generate import degrees_of, is_rank, model_options, session_request, start_ranks
from megads.cli.options.request import FlagCommand, absolute, show_notes
from megads.cli.progress_bar import bar
from megads.cli.watched import watched
from megads.errors import ConfigError
from megads.text.plural import plural

if TYPE_CHECKING:
    from pathlib import Path

    from megads.detoxify.generate import Order

LENGTH, LENGTH_WITH_PROMPT = 1000, 20
CONTINUATIONS = 25
_COUNT = click.IntRange(min=1)


@click.command("generate", cls=FlagCommand, epilog="Options of Megatron-LM that describe the model are checked.")
@model_options
@click.option("--num-samples", "--num_samples", "count", type=click.IntRange(min=0), default=0, help="Texts in all.")
@click.option("--prompts", "--input", "--sample-input-file", "source_file", metavar="FILE", help="Prompts, JSON lines.")
@click.option("--continuations", type=_COUNT, default=None, help=f"Of each prompt.  [default: {CONTINUATIONS}]")
@click.option(
    "--output",
    *("--genfile", "--sample-output-file", "target"),
    metavar="FILE",
    help="JSON lines.  [default: PROMPTS.out]",
)
@click.option(
    "--max-tokens",
    "--out-seq-length",
    type=_COUNT,
    help=f"At most generated.  [default: {LENGTH}; with prompts {LENGTH_WITH_PROMPT}]",
)
@click.option("--top-p", "--top_p", type=float, default=0.9, show_default=True, help="0: all tokens.")
@click.option("--top-k", "--top_k", type=int, default=0, show_default=True, help="0: all tokens.")
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option("--seed", "--random-seed", type=click.IntRange(min=0), default=1234, show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace a file that another command made.")
@click.option("--max-tokens-to-oom", type=int, hidden=True, help="Accepted; memory is set by --batch.")
@click.option("--recompute", is_flag=True, hidden=True, help="Accepted; keys and values are always cached.")
def generate_texts(flags: Sequence[tuple[str, str]], **options: Any) -> None:
    """Let the model in SRC write texts: --num-samples of its own, or --continuations of each prompt in FILE.

    A prompt is a line {"prompt": {"text": "..."}} or {"prompt": "..."}. A text is a line
    {"text", "all_text", "prompt", "id"}. The same command resumes one that was killed.
    """
    from megads.cli.options.model_flags import read_model_flags

    degrees = degrees_of(options)
    given = read_model_flags(flags)
    options["dtype"] = options["dtype"] or given.dtype
    options["tokenizer"] = options["tokenizer"] or given.tokenizer
    target = _target(options)
    order = _order(options)
    ranks = degrees["tensor"] * degrees["pipeline"]
    if ranks > 1 and not is_rank():
        sys.exit(start_ranks(ranks))
    from megads.detoxify.generate import write_texts
    from megads.inference.session import open_session

    slots = min(options["batch"], order.count)
    session = open_session(session_request(options, degrees, slots), os.environ)
    given.check(session.runner.module.config)
    with watched(session):
        if session.speaks:
            show_notes((*session.notes, given.note(), session.summary))
        with bar("generating", "texts", lines=session.speaks) as progress:
            had = write_texts(session, order, target, overwrite=options["overwrite"], progress=progress)
        if session.speaks:
            before = f", {had} of them by an earlier call" if had else ""
            click.echo(f"{target}: {plural(order.count, 'text')}{before}")


def _target(options: dict[str, Any]) -> Path:
    """Return the output, whose name may follow from the prompts', as in Megatron-LM."""
    named = options["target"] or (options["source_file"] and options["source_file"] + ".out")
    if not named:
        raise ConfigError("pass --output FILE for the texts")
    target = absolute(named)
    if target.is_dir():
        raise ConfigError(f"--output {target}: is a folder; pass a file")
    if not target.parent.is_dir():
        raise ConfigError(f"--output {target}: its folder does not exist; create it, or pass another file")
    return target


def _order(options: dict[str, Any]) -> Order:
    """Return what to generate; what is wrong with it shows before the model is loaded."""
    source, count = options["source_file"], options["count"]
    if not source:
        if not count:
            raise ConfigError("pass --num-samples N for texts without a prompt, or --prompts FILE")
        if options["continuations"]:
            raise ConfigError(f"--continuations {options['continuations']} needs --prompts FILE")
    from megads.detoxify.generate import Order, continuations
    from megads.detoxify.records import read_prompts
    from megads.inference.sampling import Sampling

    prompts = [each.text for each in read_prompts(absolute(source))] if source else []
    if prompts:
        count = len(prompts) * continuations(count, len(prompts), options["continuations"] or 0, CONTINUATIONS)
    sampling = Sampling(
        max_tokens=options["max_tokens"] or (LENGTH_WITH_PROMPT if source else LENGTH),
        temperature=options["temperature"],
        top_p=options["top_p"] or 1.0,  # 0 switches it off in Megatron's scripts
        top_k=options["top_k"],
        seed=options["seed"],
    )
    return Order(prompts, count, sampling)
