"""Makes a byte-level BPE of GPT-2's kind, and a WordPiece vocabulary of BERT's for the demo corpus."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from megads.data.preprocess.input.files import find_inputs, read_lines
from megads.data.preprocess.input.json_lines import BadLine, load_line
from megads.data.tokenizers.types.bert import LONGEST_WORD
from megads.errors import DataError

EOD = "<|endoftext|>"
WORD_PIECE_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = 150
"""Of a WordPiece vocabulary, each of which may begin and continue a word."""
SMALLEST = 257
"""Tokens of a vocabulary that knows every byte and the end of a document."""
HALF = re.compile("[\ud800-\udfff]")
LARGEST = 10_000_000
"""Tokens; far more than any model's vocabulary. The library reserves memory for all of them."""


def train_bpe(texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str] = ()) -> Any:
    """Return a byte-level BPE (``tokenizers.Tokenizer``) of at most ``vocab_size`` tokens.

    The same texts give the same tokenizer, for any number of threads. Ids begin with :data:`EOD` and
    ``special_tokens``; then come the 256 bytes, then the merges in the order they were found.

    Args:
        texts: what to learn from; read once.
        vocab_size: special tokens included. A small text may yield less.
        special_tokens: found in texts as they are, besides :data:`EOD`.

    Raises:
        DataError: ``vocab_size`` does not hold the bytes and the special tokens, or is too large.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    special = list(dict.fromkeys([EOD, *special_tokens]))
    smallest = SMALLEST - 1 + len(special)
    if vocab_size > LARGEST:
        raise DataError(f"--vocab-size {vocab_size}: at most {LARGEST} are possible")
    if vocab_size < smallest:
        raise DataError(f"--vocab-size {vocab_size}: 256 bytes and {len(special)} special tokens need {smallest}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,  # its bars do not know how much is to come
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_word_piece(texts: Sequence[str], vocab_size: int, *, lower_case: bool) -> Any:
    """Return BERT's tokenizer (``tokenizers.Tokenizer``) with a vocabulary of about ``vocab_size`` tokens, at most.

    The same texts give the same tokenizer. Its rules are those of ``BertWordPieceLowerCase``, or of
    ``BertWordPieceCase``. Ids begin with ``[PAD] [UNK] [CLS] [SEP] [MASK]``; then come the pieces in the order of their
    letters. Rare letters are unknown.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

    rules = normalizers.BertNormalizer(lowercase=lower_case)
    counts = Counter(itertools.chain.from_iterable(map(rules.normalize_str, texts)))
    found = sorted((letter for letter in counts if not letter.isspace()), key=lambda each: (-counts[each], each))
    letters = sorted(found[:LETTERS])
    # The library numbers letters inside of words in a random order, and breaks ties by number; not those it is given.
    given = [*WORD_PIECE_SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    learner = Tokenizer(models.WordPiece(unk_token=WORD_PIECE_SPECIALS[1], max_input_chars_per_word=LONGEST_WORD))
    others = "".join(f"\\x{{{ord(letter):x}}}" for letter in letters)
    learner.normalizer = normalizers.Sequence([rules, normalizers.Replace(Regex(f"[^{others}]"), " ")])
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=given, show_progress=False)
    learner.train_from_iterator(texts, trainer)
    pieces = sorted(set(learner.get_vocab()) - {*WORD_PIECE_SPECIALS})
    numbers = {token: number for number, token in enumerate((*WORD_PIECE_SPECIALS, *pieces))}
    tokenizer = Tokenizer(
        models.WordPiece(numbers, unk_token=WORD_PIECE_SPECIALS[1], max_input_chars_per_word=LONGEST_WORD)
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = rules, pre_tokenizers.BertPreTokenizer()
    return tokenizer


def read_texts(inputs: Sequence[str], keys: Sequence[str], most_bytes: int = 0) -> Iterator[str]:
    """Return the texts under ``keys`` of the JSON lines in ``inputs``, until ``most_bytes`` of them; 0: all.

    A value is a text or a list of texts. Documents need one of the keys. All files are looked at before the first
    is read.

    Raises:
        DataError: a file cannot be read, a line is not a JSON object, or has none of the keys.
    """
    find_inputs(inputs)
    left = most_bytes or float("inf")
    for name in inputs:
        for number, line in enumerate(read_lines([name]), start=1):
            for text in _texts_of(line, keys, f"{name}: object {number}"):
                if left <= 0:
                    return
                yield text
                left -= len(text.encode())


def _texts_of(line: bytes, keys: Sequence[str], where: str) -> Iterator[str]:
    try:
        content = load_line(line)  # takes what `megads data preprocess` takes, Infinity for one
    except BadLine as error:
        raise DataError(f"{where}: {error}; expected one object per line") from None
    given = [key for key in keys if key in content] if isinstance(content, dict) else []
    if not isinstance(content, dict) or not given:
        named = " or ".join(map(repr, keys))
        raise DataError(f"{where}: has no text under {named}; name the key of the texts with --json-keys")
    for key in given:
        value = content[key]
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str):
                raise DataError(f"{where}: has no text under {key!r}; name the key of the texts with --json-keys")
            if not text.isascii() and HALF.search(text):
                raise DataError(f"{where}: {key!r} holds half of a surrogate pair, which is not a character")
            yield text


def check_output(folder: Path) -> None:
    """Raise DataError where there is something of this name that is not an empty folder."""
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"--output {folder}: already exists; remove it or use another folder")


def vocab_text(tokenizer: Any) -> str:
    """Return the ``vocab.txt`` of a WordPiece tokenizer: a token a line, by number."""
    return "".join(f"{token}\n" for token in sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get))


def save(tokenizer: Any, folder: Path) -> None:
    """Write the folder: ``vocab.txt`` of WordPiece.

    Of a BPE tokenizer.json, tokenizer_config.json, and vocab.json with merges.txt for GPT2BPETokenizer. It appears
    whole or not at all.

    Raises:
        DataError: there is something of this name, or the disk does not take it.
    """
    check_output(folder)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        for name, text in _files_of(tokenizer).items():
            (temporary / name).write_text(text, encoding="utf-8")
        temporary.rename(folder)
    except OSError as error:
        raise DataError(f"--output {error.filename or folder}: {str(error.strerror).lower()}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _files_of(tokenizer: Any) -> dict[str, str]:
    model = json.loads(tokenizer.to_str())["model"]
    if model["type"] == "WordPiece":
        return {"vocab.txt": vocab_text(tokenizer)}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    config = {"eos_token": EOD, "tokenizer_class": "PreTrainedTokenizerFast"}
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "vocab.json": json.dumps(model["vocab"], ensure_ascii=False) + "\n",
        "merges.txt": "\n".join(["#version: 0.2", *merges, ""]),
    }
