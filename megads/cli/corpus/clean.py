"""``megads corpus clean``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import click

from megads.cli.corpus.frame import dropped_option, frame_options, in_and_out, run_and_print
from megads.cli.options.request import ManyWords
from megads.config.settings.data import TokenizerType
from megads.errors import ConfigError, DataError

if TYPE_CHECKING:
    from megads.data.tokenizers.base import TokenizerSpec

_USAGE = "megads corpus clean INPUT... OUTPUT"
_TYPES = get_args(TokenizerType)

_TOKENIZER = (
    click.option("--tokenizer-type", "type", type=click.Choice(_TYPES), help="Kind of tokenizer."),
    click.option(
        "--tokenizer-model", "--tokenizer-name-or-path", "model", default="", help="A tokenizer's file or folder."
    ),
    click.option("--vocab-file", "--vocab", default="", help="Vocabulary of GPT2BPETokenizer or BertWordPiece*."),
    click.option("--merge-file", default="", help="Merges of GPT2BPETokenizer."),
)


def tokenizer_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a tokenizer to a command."""
    for option in reversed(_TOKENIZER):
        function = option(function)
    return function


@click.command(cls=ManyWords)
@click.argument("paths", nargs=-1)
@click.option("--input", "--input-files", "inputs", multiple=True, help="Files or patterns; several.")
@click.option("--output", default="", help="The file to make.")
@click.option("--tasks", multiple=True, help="Tasks of Megatron-LM's cleanup_fix_dataset.py instead; several.")
@click.option("--output-path", default="", help="With --tasks: a folder, NAME_cleaned and NAME_filtered per input.")
@click.option("--json-key", "key", default="text", show_default=True, help="Key of the text.")
@click.option("--languages", multiple=True, default=("en",), show_default=True, help="Languages to keep; several.")
@click.option(
    "--min-tokens", type=click.IntRange(min=0), help="Tokens of a document; needs a tokenizer.  [default: 128]"
)
@click.option("--min-chars", type=click.IntRange(min=0), help="Characters of a document.  [default: 512, or 0]")
@tokenizer_options
@dropped_option
@frame_options
def clean(
    paths: tuple[str, ...],
    inputs: tuple[str, ...],
    output: str,
    tasks: tuple[str, ...],
    output_path: str,
    **options: Any,
) -> None:
    """Repair texts, and drop documents that are short or in other languages.

    \b
      megads corpus clean raw.jsonl clean.jsonl --dropped dropped.jsonl
      megads corpus clean --input-files a.jsonl --output-path DIR --tasks remove_512 general_cleaning

    The text is repaired with ftfy, then its language is found, then its length is checked: at least 128 tokens
    (--min-tokens) where a tokenizer is named, else 512 characters (--min-chars). A document that one rule drops is not
    checked by the next. Lines of documents that need no repair stay as they are.
    """
    from megads.data.corpus.cleaning.clean import MIN_CHARS, MIN_TOKENS, Clean
    from megads.data.corpus.cleaning.tasks import Tasks

    key, languages = options.pop("key"), tuple(options.pop("languages"))
    spec = tokenizer_of(options)
    min_tokens, min_chars = options.pop("min_tokens"), options.pop("min_chars")
    if tasks or output_path:
        if min_tokens is not None or min_chars is not None or spec is not None:
            raise ConfigError("--min-tokens, --min-chars and tokenizers are ignored with --tasks; drop these options")
        step = Tasks(tasks, languages, key)
        if step.note:
            click.echo(f"megads: {step.note}", err=True)
        if output_path:
            _each(step, [*inputs, *paths], output, output_path, options)
        else:
            run_and_print(step, *in_and_out(paths, inputs, output, _USAGE), options)
        return
    if min_tokens is not None and spec is None:
        raise ConfigError("--min-tokens needs a tokenizer: pass --tokenizer-model, or --min-chars instead")
    least = MIN_TOKENS if min_tokens is None else min_tokens
    chars = (0 if spec else MIN_CHARS) if min_chars is None else min_chars
    names, output = in_and_out(paths, inputs, output, _USAGE)
    run_and_print(Clean(languages, spec, least, chars, key), names, output, options)


def tokenizer_of(options: dict[str, Any]) -> TokenizerSpec | None:
    """Return the tokenizer that the options name; None for none."""
    from megads.data.tokenizers.base import TokenizerSpec

    kind, model = options.pop("type"), options.pop("model")
    vocab, merges = options.pop("vocab_file"), options.pop("merge_file")
    if not (kind or model or vocab or merges):
        return None
    return TokenizerSpec(kind or ("GPT2BPETokenizer" if vocab else _TYPES[0]), model, vocab, merges)


def _each(step: Any, names: list[str], output: str, folder: str, options: dict[str, Any]) -> None:
    """Clean each input by itself, into files of ``folder`` with the names of Megatron's tool."""
    from megads.data.preprocess.input.files import find_inputs

    if output or options.pop("dropped"):
        raise ConfigError("--output and --dropped are ignored with --output-path, which names the files; drop them")
    if not names:
        raise ConfigError("--input-files names no file; pass files of JSON lines")
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise DataError(f"--output-path {folder}: is not a folder")
    sources = [source.path for source in find_inputs(names)]
    stems: dict[tuple[str, str], str] = {}
    for path in sources:
        stem, ending = os.path.splitext(_unpacked(os.path.basename(path)))
        if other := stems.get((stem, ending)):
            raise DataError(f"--input-files: {other} and {path} would both become {stem}_cleaned{ending}; rename one")
        stems[stem, ending] = path
    for (stem, ending), path in stems.items():
        own = {**options, "dropped": os.path.join(folder, f"{stem}_filtered{ending}")}
        run_and_print(step, [path], os.path.join(folder, f"{stem}_cleaned{ending}"), own)


def _unpacked(name: str) -> str:
    """Return a file's name without what says how it is packed."""
    for ending in (".gz", ".xz", ".zst", ".bz2"):
        name = name.removesuffix(ending)
    return name
