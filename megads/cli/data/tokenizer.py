"""``megads data train-tokenizer``: JSON lines to a byte-level BPE, or to the WordPiece vocabulary of a BERT."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import click

from megads.cli.options.request import ManyWords
from megads.errors import ConfigError
from megads.text.plural import plural

_EVERY_S = 5.0
_BPE = "GPT2BPETokenizer"
_SMALLEST = 257  # as tokenize.train.SMALLEST, which would load more than --help needs


@click.command(cls=ManyWords)
@click.option("--input", "inputs", multiple=True, required=True, help="Files, patterns, or - for stdin; several.")
@click.option(
    "--json-keys", "--json-key", "keys", multiple=True, default=("text",), help="Keys to learn from; several."
)
@click.option("--vocab-size", type=click.IntRange(min=_SMALLEST), required=True, help="Tokens, special ones included.")
@click.option("--output", required=True, help="Folder to make: tokenizer.json, vocab.json, merges.txt; or vocab.txt.")
@click.option(
    "--tokenizer-type",
    "type",
    type=click.Choice((_BPE, "BertWordPieceLowerCase", "BertWordPieceCase")),
    default=_BPE,
    help="Kind of tokenizer.",
)
@click.option("--special-tokens", multiple=True, help="Found in texts as they are, besides <|endoftext|>; several.")
@click.option("--max-bytes", type=click.IntRange(min=0), default=0, help="Text to learn from, at most; 0: all.")
def train_tokenizer(
    inputs: tuple[str, ...],
    keys: tuple[str, ...],
    vocab_size: int,
    output: str,
    type: str,
    special_tokens: tuple[str, ...],
    max_bytes: int,
) -> None:
    """Make a byte-level BPE, as GPT-2's, or a WordPiece vocabulary, as BERT's, from JSON lines.

    The same input gives the same files.

    \b
      megads data train-tokenizer --input corpus.jsonl --vocab-size 32000 --output my-tokenizer

    A hundred megabytes of text like the data's are plenty: --max-bytes 100000000.
    """
    from megads.data.tokenizers.train import check_output, read_texts, save, train_bpe, train_word_piece

    folder = Path(os.path.expanduser(output)).absolute()
    check_output(folder)
    if type != _BPE and special_tokens:
        raise ConfigError(f"--special-tokens are for {_BPE}; {type} has [PAD], [UNK], [CLS], [SEP] and [MASK]")
    texts = _reported(read_texts(inputs, keys, max_bytes), vocab_size)
    if type == _BPE:
        tokenizer = train_bpe(texts, vocab_size, special_tokens)
    else:
        tokenizer = train_word_piece([*texts], vocab_size, lower_case=type == "BertWordPieceLowerCase")
    save(tokenizer, folder)
    made = tokenizer.get_vocab_size()
    less = f"; the text yields no more than that of {vocab_size}" if made < vocab_size else ""
    click.echo(f"{folder}: {plural(made, 'token')}{less}")
    path = f"{folder}/vocab.txt"
    ways = f"TOKENIZER_MODEL={folder}, or --tokenizer-model {folder}"
    if type != _BPE:
        ways = f"VOCAB_FILE={path}, or --tokenizer-type {type} --vocab-file {path}"
    click.echo(f"use it with {ways}")


def _reported(texts: Iterator[str], vocab_size: int) -> Iterator[str]:
    """Yield ``texts``; report on stderr how much is read so far, every few seconds, and when the learning begins."""
    begin = last = time.monotonic()
    count = size = 0
    for text in texts:
        yield text
        count, size = count + 1, size + len(text)
        if (now := time.monotonic()) - last > _EVERY_S:
            last = now
            click.echo(f"megads: {count} texts read, {size / 1e6:.0f} M characters, {now - begin:.0f} s", err=True)
    click.echo(f"megads: {count} texts read, {size / 1e6:.1f} M characters; learning {vocab_size} tokens", err=True)
