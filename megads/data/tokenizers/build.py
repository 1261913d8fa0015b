"""From a description of a tokenizer, or from the run that uses it, to the tokenizer. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from megads.config.schema import RunConfig
from megads.data.sources import demo
from megads.data.sources.file_list import read_file_list
from megads.data.tokenizers.base import Tokenizer, TokenizerSpec
from megads.data.tokenizers.types import bert, gpt2, huggingface, null, sentencepiece
from megads.errors import ConfigError


@dataclass(frozen=True)
class Family:
    """What can be done with the files of one kind of tokenizer; None: only by loading it."""

    make: Callable[[TokenizerSpec], Tokenizer]  # errors as make_tokenizer
    vocab_size: Callable[[TokenizerSpec], int] | None = None  # as Tokenizer.vocab_size
    identity: Callable[[TokenizerSpec], str] | None = None  # as Tokenizer.fingerprint


_HF = Family(huggingface.make, huggingface.vocab_size, huggingface.identity)
_BERT = Family(bert.make)
_SENTENCE = Family(sentencepiece.make, identity=sentencepiece.identity)

FAMILIES = {
    "HFTokenizer": _HF,
    "PretrainedFromHF": _HF,
    "GPT2BPETokenizer": Family(gpt2.make, gpt2.vocab_size, gpt2.identity),
    "BertWordPieceLowerCase": _BERT,
    "BertWordPieceCase": _BERT,
    "SentencePieceTokenizer": _SENTENCE,
    "GPTSentencePieceTokenizer": _SENTENCE,
    "Llama2Tokenizer": _SENTENCE,
    "NullTokenizer": Family(null.make),
}
"""TOKENIZER_TYPE and how its tokenizers are made."""

_READERS = {
    "VOCAB_FILE": "GPT2BPETokenizer, BertWordPieceLowerCase or BertWordPieceCase",
    "MERGE_FILE": "GPT2BPETokenizer",
}
"""What is of no use to the other types, and the types that read it."""


def make_tokenizer(spec: TokenizerSpec) -> Tokenizer:
    """Return the tokenizer that ``spec`` describes.

    Raises:
        ConfigError: the type is unknown, or something it needs is not named.
        DataError: a file is not there or is broken.
        DependencyError: its library is not installed.
    """
    return check_spec(spec).make(spec)


def vocab_size(spec: TokenizerSpec) -> int:
    """Return the largest id + 1; errors as in :func:`make_tokenizer`."""
    family = check_spec(spec)
    return family.vocab_size(spec) if family.vocab_size else family.make(spec).vocab_size


def identity(spec: TokenizerSpec) -> str:
    """Return the fingerprint of the tokenizer; errors as in :func:`make_tokenizer`."""
    family = check_spec(spec)
    return family.identity(spec) if family.identity else family.make(spec).fingerprint


def check_spec(spec: TokenizerSpec) -> Family:
    """Return the type's row. What it does not read is refused: who names a file means it to be used.

    Raises:
        ConfigError: the type is unknown, or a file is named that it does not read or that is not there.
    """
    if spec.type not in FAMILIES:
        raise ConfigError(f"tokenizer type {spec.type!r}: unknown; known types: {', '.join(FAMILIES)}")
    for setting, value in (("VOCAB_FILE", spec.vocab_file), ("MERGE_FILE", spec.merge_file)):
        if value and spec.type not in _READERS[setting]:
            fitting = _READERS[setting]
            if spec.merge_file or spec.vocab_file.endswith(".json"):
                fitting = "GPT2BPETokenizer"
            elif spec.vocab_file.endswith(".txt"):
                fitting = "BertWordPieceLowerCase or BertWordPieceCase"
            raise ConfigError(
                f"{setting}={value} is not read by TOKENIZER_TYPE={spec.type}; leave it unset, or set TOKENIZER_TYPE "
                f"(--tokenizer-type) to {fitting}"
            )
    if spec.type.startswith("BertWordPiece") and spec.model and not Path(spec.model).expanduser().exists():
        raise ConfigError(
            f"TOKENIZER_MODEL={spec.model}: no such file; TOKENIZER_TYPE={spec.type} reads a vocab.txt, and nothing is "
            f"downloaded: `hf download {spec.model} vocab.txt --local-dir DIR`, then VOCAB_FILE=DIR/vocab.txt"
        )
    if spec.vocab_file and spec.model:
        raise ConfigError(f"VOCAB_FILE={spec.vocab_file} and TOKENIZER_MODEL={spec.model}: set only one of them")
    if spec.type == "NullTokenizer" and (spec.model or spec.extra_ids):
        name = f"TOKENIZER_MODEL={spec.model}" if spec.model else f"VOCAB_EXTRA_IDS={spec.extra_ids}"
        raise ConfigError(f"{name} is not read by TOKENIZER_TYPE=NullTokenizer; leave one of them unset")
    return FAMILIES[spec.type]


def spec_of(run: RunConfig) -> TokenizerSpec:
    """Return the description of the run's tokenizer; the demo corpus' own where the run names none.

    Raises:
        ConfigError: the settings name data but no tokenizer.
    """
    data = run.data
    model, vocab_file = data.tokenizer_model, data.vocab_file
    if uses_demo_tokenizer(run):
        folder = demo.demo_prefix(run).parent
        if demo.word_piece_type(run):
            vocab_file = str(folder / demo.SENTENCE_FILES[-1])
        else:
            model = str(folder)
    return TokenizerSpec(
        data.tokenizer_type, model, vocab_file, data.merge_file, run.model.vocab_size, data.vocab_extra_ids
    )


def vocab_size_of(run: RunConfig) -> int:
    """Return the size of the run's vocabulary, without loading the tokenizer itself where that takes longer.

    For the demo corpus that is ``run.data.demo_vocab_size``, whether or not the corpus is made yet.

    Raises:
        MegadsError: as :func:`make_tokenizer`, or the settings name no tokenizer.
    """
    spec = spec_of(run)
    if uses_demo_tokenizer(run):
        check_spec(spec)
        added = len(bert.ADDED) + run.data.vocab_extra_ids if demo.word_piece_type(run) else 0
        return run.data.demo_vocab_size + added
    return vocab_size(spec)


def load_tokenizer(run: RunConfig) -> Tokenizer:
    """Return the run's tokenizer; errors as in :func:`vocab_size_of`."""
    if not uses_demo_tokenizer(run):
        return make_tokenizer(spec_of(run))
    demo.read_demo(run)
    tokenizer = make_tokenizer(spec_of(run))
    if demo.word_piece_type(run):
        return tokenizer
    # A small corpus may yield fewer tokens than were asked for.
    assert isinstance(tokenizer, huggingface.HFTokenizer)
    return replace(tokenizer, vocab_size=run.data.demo_vocab_size)


def uses_demo_tokenizer(run: RunConfig) -> bool:
    """Return whether the run takes the demo corpus' tokenizer: it names neither data nor a tokenizer.

    Raises:
        ConfigError: it names data, but no tokenizer.
        DataError: its list of data cannot be read.
    """
    data = run.data
    if demo.word_piece_type(run):
        named = data.tokenizer_model or data.vocab_file or data.file_list or data.path
        return data.tokenizer_type.startswith("BertWordPiece") and not named
    if data.tokenizer_type not in ("HFTokenizer", "PretrainedFromHF") or data.tokenizer_model:
        return False
    for setting, value in (("DATA_FILE_LIST", data.file_list), ("DATA_PATH", data.path)):
        if value:
            check_spec(TokenizerSpec(data.tokenizer_type, "", data.vocab_file, data.merge_file))
            if setting == "DATA_FILE_LIST":
                read_file_list(Path(value))  # a name that is no list comes before the tokenizer
            raise ConfigError(
                f"{setting}={value} is given without a tokenizer; set TOKENIZER_MODEL to the tokenizer.json "
                "the data was made with, or TOKENIZER_TYPE=NullTokenizer and VOCAB_SIZE"
            )
    return True
