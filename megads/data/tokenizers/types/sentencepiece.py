"""The three types that read a ``.model`` of the sentencepiece library.

SentencePieceTokenizer: ``<CLS> <SEP> <EOD> <MASK>``, padding, begin and end, and ``<extra_id_N>`` are added behind the
vocabulary unless it has them, and are found in texts. GPTSentencePieceTokenizer and Llama2Tokenizer add nothing to the
vocabulary, and special tokens in texts are ordinary text; a document ends with the model's end of sentence.
Llama2Tokenizer puts the model's begin of sentence before every text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.data.tokenizers.base import Specials, TokenizerSpec
from megads.data.tokenizers.types.files import find_file, fingerprint, read_bytes
from megads.errors import ConfigError, DataError, DependencyError

_WHAT = "a .model file of the sentencepiece library"


@dataclass(frozen=True)
class SentencePieceTokenizer:
    """Runs a ``sentencepiece.SentencePieceProcessor``."""

    processor: Any  # sentencepiece.SentencePieceProcessor
    vocab_size: int
    specials: Specials
    eod_id: int | None
    prefix: tuple[int, ...]  # ids before every text
    found: Mapping[str, int]  # tokens that are looked for in texts, in the order of precedence
    spec: TokenizerSpec

    @property
    def eod(self) -> int:
        """Id of ``<EOD>``, or of the end of sentence where nothing is added; ConfigError where there is none."""
        if self.eod_id is None:
            raise ConfigError(f"{self.spec.model}: has no end-of-sentence piece to end a document with")
        return self.eod_id

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the file's content and the type's rules."""
        return identity(self.spec)

    @functools.cached_property
    def finder(self) -> re.Pattern[str] | None:
        """Matches what is taken for a special token in texts; None where nothing is."""
        return re.compile("|".join(map(re.escape, self.found))) if self.found else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``."""
        ids = list(self.prefix)
        start = 0
        for match in self.finder.finditer(text) if self.finder else ():
            ids += self.processor.encode(text[start : match.start()])
            ids.append(self.found[match.group()])
            start = match.end()
        ids += self.processor.encode(text[start:])
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of ``text`` without the begin of sentence."""
        return self.encode(text)[len(self.prefix) :]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``; tokens that were added stand between blanks."""
        names = {number: token for token, number in self.found.items()}
        text, start = "", 0
        for place, number in enumerate(ids):
            if number in names:
                text += f"{self.processor.decode(list(ids[start:place]))} {names[number]} "
                start = place + 1
        return text + str(self.processor.decode(list(ids[start:])))


def make(spec: TokenizerSpec) -> SentencePieceTokenizer:
    """Return the tokenizer of the file ``spec.model``."""
    processor = _load(spec)
    if spec.type == "SentencePieceTokenizer":
        return _with_added_tokens(processor, spec)
    if spec.extra_ids:
        raise ConfigError(f"TOKENIZER_TYPE={spec.type} has no tokens <extra_id_N>; set VOCAB_EXTRA_IDS=0")
    numbers = (processor.bos_id(), processor.eos_id(), processor.pad_id())
    bos, eos, pad = (number if number >= 0 else None for number in numbers)
    prefix: tuple[int, ...] = ()
    if spec.type == "Llama2Tokenizer":
        if bos is None:
            raise ConfigError(f"{spec.model}: has no begin-of-sentence piece, which {spec.type} puts before every text")
        prefix = (bos,)
    return SentencePieceTokenizer(processor, len(processor), Specials(bos, eos, pad=pad), eos, prefix, {}, spec)


def identity(spec: TokenizerSpec) -> str:
    """Return the fingerprint without loading the model."""
    return fingerprint(spec.type, read_bytes(_path(spec)), spec.extra_ids)


def _path(spec: TokenizerSpec) -> Path:
    folder = Path(spec.model).expanduser()
    name = str(folder / "tokenizer.model") if spec.model and folder.is_dir() else spec.model
    return find_file(name, "TOKENIZER_MODEL", _WHAT)


def _load(spec: TokenizerSpec) -> Any:
    path = _path(spec)
    try:
        import sentencepiece
    except ImportError:
        needs = f"TOKENIZER_TYPE={spec.type} needs the package sentencepiece"
        raise DependencyError(f"{needs}: pip install sentencepiece") from None
    content = read_bytes(path)
    if not content:
        raise DataError(f"{path}: is empty; expected {_WHAT}")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except Exception as error:  # RuntimeError, or TypeError of the binding, by version
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: sentencepiece cannot read it ({reason}); expected {_WHAT}") from None


def _with_added_tokens(processor: Any, spec: TokenizerSpec) -> SentencePieceTokenizer:
    vocab = {processor.id_to_piece(number): number for number in range(len(processor))}
    found: dict[str, int] = {}

    def add(token: str) -> int:
        found[token] = vocab.setdefault(token, len(vocab))
        return found[token]

    def add_own(number: int, name: str) -> int:
        return add(processor.id_to_piece(number) if number >= 0 else name)

    cls, sep, eod, mask = map(add, ("<CLS>", "<SEP>", "<EOD>", "<MASK>"))
    pad = add_own(processor.pad_id(), "<PAD>")
    bos = add_own(processor.bos_id(), "<BOS>")
    eos = add_own(processor.eos_id(), "<EOS>")
    extra = tuple(add(f"<extra_id_{number}>") for number in range(spec.extra_ids))
    return SentencePieceTokenizer(
        processor, max(vocab.values()) + 1, Specials(bos, eos, cls, sep, pad, mask, extra), eod, (), found, spec
    )
