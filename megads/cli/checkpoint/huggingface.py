"""``megads checkpoint export-hf`` and ``import-hf``: to and from Hugging Face folders."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megads.cli.options.paths import absolute
from megads.cli.progress_bar import bar
from megads.errors import CheckpointError, DataError, MegadsError
from megads.text.plural import plural

if TYPE_CHECKING:
    from megads.checkpoint.convert.huggingface.export import SaveTokenizer
    from megads.checkpoint.convert.huggingface.import_ import Imported
    from megads.checkpoint.format.folders import CheckpointRef
    from megads.checkpoint.format.manifest import Manifest
    from megads.data.tokenizers.base import TokenizerSpec

_LONGEST = 4096
"""Tokens of a sample that the command after an import proposes, at most."""


@click.command()
@click.argument("source", metavar="CKPT")
@click.argument("target", metavar="DST")
@click.option(
    "--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="Dtype of the weights; default: the run's DTYPE."
)
@click.option("--max-shard-size", default="5GB", show_default=True, help="Size of a file, e.g. 5GB or 500MiB.")
@click.option("--tokenizer", metavar="PATH", help="tokenizer.json, .model or folder to use instead of the run's.")
@click.option("--no-tokenizer", is_flag=True, help="Weights and settings only.")
@click.option("--step", "--ckpt-step", type=click.IntRange(min=0), help="The iteration to take; default: the newest.")
def export_hf_command(
    source: str,
    target: str,
    dtype: str | None,
    max_shard_size: str,
    tokenizer: str | None,
    no_tokenizer: bool,
    step: int | None,
) -> None:
    """Write a checkpoint as a Hugging Face folder, for AutoModelForCausalLM.from_pretrained(DST).

    CKPT is a run, a folder of checkpoints (the newest that is valid) or a checkpoint, of any layout
    and ZeRO stage. DST is a new folder: model.safetensors (or several, with an index), config.json,
    generation_config.json and the tokenizer that the run used. Llama becomes LlamaForCausalLM (or
    MistralForCausalLM, as it was imported), GPT becomes GPT2LMHeadModel.
    """
    from megads.checkpoint.convert.huggingface.export import export
    from megads.checkpoint.convert.huggingface.write_shards import parse_size
    from megads.checkpoint.convert.reshard import source_of
    from megads.checkpoint.format.reader import Reader

    limit = parse_size(max_shard_size)
    found = source_of(absolute(source), step)
    for broken in found.broken:
        click.echo(f"megads: skipped: {CheckpointError(broken)}", err=True)
    notes: list[str] = []
    save, words = (None, "no tokenizer") if no_tokenizer else _tokenizer_of(found, tokenizer, notes)
    final = absolute(target)
    with Reader(found.path, found.manifest, in_use=True) as reader, bar("exporting") as progress:
        done = export(reader, final, dtype=dtype or "", limit=limit, tokenizer=save, progress=progress)
    for note in notes:
        click.echo(f"megads: {note}", err=True)
    files = f"{len(done.files)} files" if len(done.files) > 1 else done.files[0]
    click.echo(
        f"{final}: {done.architecture} of {_count(done.parameters)} parameters in {done.dtype}, {files}, {words}"
    )


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option(
    "--vocab-multiple",
    "--make-vocab-size-divisible-by",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Pad the vocabulary to a multiple of this, which TP must divide.",
)
def import_hf_command(source: str, target: str, vocab_multiple: int) -> None:
    """Make a checkpoint of a Hugging Face folder, which a run then starts from.

    SRC is the local folder of a Llama, Mistral or GPT-2 model: config.json and *.safetensors, or
    pytorch_model*.bin. DST is a new folder of checkpoints, with the one of iteration 0 and the
    tokenizer; nothing else is written. The command to train it is printed.
    """
    from megads.checkpoint.convert.huggingface.import_ import import_folder, padding_rows

    folder, final = absolute(source), absolute(target)
    with bar("importing", "numbers") as progress:
        made = import_folder(folder, final, vocab_multiple=vocab_multiple, progress=progress)
    architecture, model = made.described.architecture, made.described.model
    rows = padding_rows(made.described)
    padded = f", {rows} rows of zeros pad its vocabulary of {model.vocab_size}" if rows else ""
    click.echo(f"{made.path}: {architecture} of {_count(made.parameters)} parameters, {made.dtype} in {folder}{padded}")
    for line in _notes(made):
        click.echo(line)
    click.echo("train it with, for example:")
    click.echo(f"  {_train_line(made, final)}")


def _count(parameters: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if parameters >= size:
            return f"{parameters / size:.3g} {unit}"
    return str(parameters)


def _notes(made: Imported) -> Iterator[str]:
    """Yield what the user should know before training."""
    from megads.data.tokenizers.base import TokenizerSpec
    from megads.data.tokenizers.build import vocab_size

    model, longest = made.described.model, made.described.longest
    if longest:
        yield f"its attention has a context of {longest} tokens; train it with SEQ={longest} or less"
    if not made.tokenizer:
        yield "it has no tokenizer; set TOKENIZER_TYPE and TOKENIZER_MODEL to the one that its data is made with"
        return
    kind, path = made.tokenizer["tokenizer_type"], made.tokenizer["tokenizer_model"]
    try:
        tokens = vocab_size(TokenizerSpec(kind, path))
    except MegadsError as error:
        yield f"its tokenizer cannot be used: {error}"
        return
    yield f"tokenizer {path} ({kind}), {plural(tokens, 'token')}"
    if tokens > model.vocab_size:
        yield (
            f"the tokenizer has {tokens - model.vocab_size} tokens more than the model, which a run "
            "rejects; use data and a tokenizer without them"
        )


def _has_fitting_tokenizer(made: Imported) -> bool:
    """Return whether a run takes the tokenizer that came along; True where none did."""
    from megads.data.tokenizers.base import TokenizerSpec
    from megads.data.tokenizers.build import vocab_size

    if not made.tokenizer:
        return True
    try:
        spec = TokenizerSpec(made.tokenizer["tokenizer_type"], made.tokenizer["tokenizer_model"])
        return vocab_size(spec) <= made.described.model.vocab_size
    except MegadsError:
        return False


def _train_line(made: Imported, final: Path) -> str:
    """Return the command that trains what was imported."""
    model = made.described.model
    length = min(_LONGEST, model.seq_length, made.described.longest or model.seq_length)
    words = {"LOAD": str(final), "USE_CHECKPOINT_ARGS": "1", "SEQ": str(length)}
    if model.hidden_dropout:
        words["HIDDEN_DROPOUT"] = f"{model.hidden_dropout:g}"
    if model.attention_dropout:
        words["ATTENTION_DROPOUT"] = f"{model.attention_dropout:g}"
    words["DATA_FILE_LIST"] = "my-data.txt"
    if not _has_fitting_tokenizer(made):
        words["TOKENIZER_MODEL"] = "my-tokenizer"
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in words.items()), "megads train"])


def _tokenizer_of(found: CheckpointRef, given: str | None, notes: list[str]) -> tuple[SaveTokenizer | None, str]:
    """Return what writes the tokenizer that is given, or else the checkpoint's, and words that say which it is."""
    spec = _spec_given(given) if given else _spec_of(found.path, found.manifest)
    if spec.type == "NullTokenizer":
        return None, "no tokenizer, the run had none (NullTokenizer)"
    return _saver(spec, notes), f"tokenizer {spec.model or spec.vocab_file}"


def _spec_given(path: str) -> TokenizerSpec:
    """Return the description of a tokenizer that the user names by its file or folder."""
    from megads.checkpoint.convert.huggingface.tokenizer import tokenizer_type
    from megads.data.tokenizers.base import TokenizerSpec

    place = absolute(path)
    if place.is_dir() and (kind := tokenizer_type(place)):
        return TokenizerSpec(kind, str(place))
    if place.suffix in (".json", ".model") and place.is_file():
        return TokenizerSpec("HFTokenizer" if place.suffix == ".json" else "Llama2Tokenizer", str(place))
    raise DataError(
        f"--tokenizer {path}: pass a tokenizer.json, a .model of sentencepiece, or a folder with either or with "
        "vocab.json and merges.txt"
    )


def _spec_of(path: Path, manifest: Manifest) -> TokenizerSpec:
    """Return the description of the tokenizer that a checkpoint was trained or imported with."""
    from pydantic import ValidationError

    from megads.checkpoint.convert.huggingface.import_ import TOKENIZER
    from megads.config.schema import RunConfig
    from megads.data.tokenizers.base import TokenizerSpec
    from megads.data.tokenizers.build import spec_of

    about = manifest.about
    if "tokenizer_type" in about:
        named = about.get("tokenizer_model", "")
        # Beside the checkpoint, should the folder have been moved.
        model = str(path.parent / TOKENIZER) if named and not Path(named).exists() else named
        files = (about.get("vocab_file", ""), about.get("merge_file", ""))
        return TokenizerSpec(about["tokenizer_type"], model, *files, manifest.model["vocab_size"])
    if not manifest.settings:
        raise CheckpointError(f"{path}: names no tokenizer; pass one with --tokenizer, or --no-tokenizer")
    try:
        return spec_of(RunConfig.model_validate(manifest.settings))
    except ValidationError as error:
        name = ".".join(map(str, error.errors()[0]["loc"]))
        raise CheckpointError(
            f"{path}: its setting {name} is from another version; pass --tokenizer, or --no-tokenizer"
        ) from None


def _saver(spec: TokenizerSpec, notes: list[str]) -> SaveTokenizer:
    """Return what writes a tokenizer, and notes what to report about it."""

    def save(folder: Path, length: int) -> Mapping[str, int]:
        from megads.data.tokenizers.export import save_for_transformers

        try:
            saved = save_for_transformers(spec, folder, length)
        except MegadsError as error:
            raise type(error)(f"{error}; --tokenizer names another, --no-tokenizer skips it") from None
        notes.extend(saved.notes)
        return saved.ids

    return save
