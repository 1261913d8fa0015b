"""``megads checkpoint export-hf`` and ``import-hf``: to and from Hugging Face folders."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megads.cli.checkpoint import STEP, find_checkpoint
from megads.cli.checkpoint.replayed import described, replayed
from megads.cli.options.request import absolute
from megads.cli.progress_bar import bar
from megads.errors import MegadsError
from megads.text.plural import plural

if TYPE_CHECKING:
    from megads.checkpoint.convert.huggingface.export import SaveTokenizer
    from megads.checkpoint.convert.huggingface.import_ import Imported
    from megads.checkpoint.format.folders import CheckpointRef
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
@STEP
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
    from megads.checkpoint.lora.merged import open_for_use

    limit, said = parse_size(max_shard_size), list[str]()
    found = find_checkpoint(absolute(source), step)
    notes: list[str] = []
    save, words = (None, "no tokenizer") if no_tokenizer else _tokenizer_of(found, tokenizer, notes)
    final = absolute(target)
    with open_for_use(found) as reader, bar("exporting") as progress:
        check = replayed(found.path, reader.manifest, said)
        done = export(reader, final, dtype=dtype or "", limit=limit, tokenizer=save, progress=progress, check=check)
    for note in (*notes, *([done.note] if done.note else [])):
        click.echo(f"megads: {note}", err=True)
    files = f"{len(done.files)} files" if len(done.files) > 1 else done.files[0]
    click.echo(
        f"{final}: {done.architecture} of {_count(done.parameters)} parameters in {done.dtype}, {files}, {words}"
    )
    for line in said:
        click.echo(line)


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
    from megads.checkpoint.convert.huggingface.import_ import import_folder
    from megads.families.decoder import padded_vocab_size

    folder, final = absolute(source), absolute(target)
    with bar("importing", "numbers") as progress:
        made = import_folder(
            folder, final, vocab_multiple=vocab_multiple, progress=progress, function=described(folder)
        )
    architecture, model = made.description.architecture, made.description.model
    rows = padded_vocab_size(model) - model.vocab_size
    padded = f", {rows} rows of zeros pad its vocabulary of {model.vocab_size}" if rows else ""
    click.echo(f"{made.path}: {architecture} of {_count(made.parameters)} parameters, {made.dtype} in {folder}{padded}")
    tokens = _tokens_of(made)
    for line in _notes(made, tokens):
        click.echo(line)
    click.echo("train it with, for example:")
    click.echo(f"  {_train_line(made, final, tokens)}")


def _count(parameters: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if parameters >= size:
            return f"{parameters / size:.3g} {unit}"
    return str(parameters)


def _notes(made: Imported, tokens: int | MegadsError) -> Iterator[str]:
    """Yield what the user should know before training."""
    model, longest = made.description.model, made.description.longest
    yield from made.description.notes
    if longest:
        yield f"its attention has a context of {longest} tokens; train it with SEQ={longest} or less"
    if not made.tokenizer:
        yield "it has no tokenizer; set TOKENIZER_TYPE and TOKENIZER_MODEL to the one that its data is made with"
        return
    if isinstance(tokens, MegadsError):
        yield f"its tokenizer cannot be used: {tokens}"
        return
    kind, path = made.tokenizer["tokenizer_type"], made.tokenizer["tokenizer_model"]
    yield f"tokenizer {path} ({kind}), {plural(tokens, 'token')}"
    if tokens > model.vocab_size:
        yield (
            f"the tokenizer has {tokens - model.vocab_size} tokens more than the model, which a run "
            "rejects; use data and a tokenizer without them"
        )


def _tokens_of(made: Imported) -> int | MegadsError:
    """Return how many tokens the imported tokenizer has, 0 where there is none, or why it cannot be used."""
    from megads.data.tokenizers.base import TokenizerSpec
    from megads.data.tokenizers.build import vocab_size

    if not made.tokenizer:
        return 0
    try:
        return vocab_size(TokenizerSpec(made.tokenizer["tokenizer_type"], made.tokenizer["tokenizer_model"]))
    except MegadsError as error:
        return error


def _train_line(made: Imported, final: Path, tokens: int | MegadsError) -> str:
    """Return the command that trains what was imported."""
    model = made.description.model
    length = min(_LONGEST, model.seq_length, made.description.longest or model.seq_length)
    words = {"LOAD": str(final), "USE_CHECKPOINT_ARGS": "1", "SEQ": str(length)}
    if model.hidden_dropout:
        words["HIDDEN_DROPOUT"] = f"{model.hidden_dropout:g}"
    if model.attention_dropout:
        words["ATTENTION_DROPOUT"] = f"{model.attention_dropout:g}"
    words["DATA_FILE_LIST"] = "my-data.txt"
    if isinstance(tokens, MegadsError) or tokens > model.vocab_size:
        words["TOKENIZER_MODEL"] = "my-tokenizer"
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in words.items()), "megads train"])


def _tokenizer_of(found: CheckpointRef, given: str | None, notes: list[str]) -> tuple[SaveTokenizer | None, str]:
    """Return what writes the tokenizer that is given, or else the checkpoint's, and words that say which it is."""
    from megads.data.chat.trained import form_of
    from megads.inference.tokenizer import spec_given, spec_of_checkpoint

    cure = "pass one with --tokenizer, or --no-tokenizer"
    spec = spec_given(given) if given else spec_of_checkpoint(found.path, found.manifest, cure)
    if spec.type == "NullTokenizer":
        return None, "no tokenizer, the run had none (NullTokenizer)"
    return _saver(spec, notes, form_of(found.manifest.settings)), f"tokenizer {spec.model or spec.vocab_file}"


def _saver(spec: TokenizerSpec, notes: list[str], form: str) -> SaveTokenizer:
    """Return what writes a tokenizer, with the chat template called ``form``, and notes what to report about it."""

    def save(folder: Path, length: int) -> Mapping[str, int]:
        from megads.data.chat.trained import save_template
        from megads.data.tokenizers.export import save_for_transformers

        try:
            saved = save_for_transformers(spec, folder, length)
            ends = save_template(form, spec, folder) if form else ()
        except MegadsError as error:
            raise type(error)(f"{error}; --tokenizer names another, --no-tokenizer skips it") from None
        notes.extend(saved.notes)
        return {**saved.ids, **({"answer_end": ends[0]} if ends else {})}

    return save
