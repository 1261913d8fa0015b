"""From a ``.model`` of the sentencepiece library to a ``tokenizer.json``, which transformers reads without it.

What is not in the library's interface (the kind of model, the table of the normalizer) is read from the file itself:
fields of a message of protocol buffers, numbered as in sentencepiece_model.proto.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.data.tokenizers.encoders.proof import BITS
from megads.data.tokenizers.types.sentencepiece import SentencePieceTokenizer
from megads.errors import DataError

BLANK = "\u2581"
_UNIGRAM, _BPE = 1, 2
_PIECE, _USER_DEFINED = 1, 4
_SAMPLES = (
    "The quick brown fox jumps over the lazy dog.",
    " two blanks  before,\tand a tab\n\nand lines\n",
    "def f(x):\n    return {'a': [1, 2.5], \"b\": x ** 2}  # 100%\n",
    *BITS,
    "".join(BITS),
    " ".join(BITS),
)


@dataclass(frozen=True)
class Facts:
    """What the file says besides its pieces."""

    kind: int
    charsmap: bytes
    adds_blank: bool  # before every text
    squeezes: bool  # runs of blanks, and those at the ends
    symbols: tuple[str, ...]  # pieces that are never cut and never joined


def save(tokenizer: SentencePieceTokenizer, folder: Path) -> tuple[str, ...]:
    """Write ``tokenizer.json`` and the ``.model`` itself; return what to tell if some texts come out otherwise.

    Raises:
        DataError: the model is neither BPE nor Unigram.
    """
    made = convert(tokenizer)
    made.save(str(folder / "tokenizer.json"))
    path = Path(tokenizer.spec.model).expanduser()
    shutil.copyfile(path / "tokenizer.model" if path.is_dir() else path, folder / "tokenizer.model")
    # transformers finds special tokens in texts, whatever the type.
    added = made.get_added_tokens_decoder().values()
    special = [token.content for token in added if token.special]
    samples = [text for text in _SAMPLES if not any(token in text for token in special)]
    samples += [f"a{token.content}b {token.content}" for token in added if not token.special]
    other = [text for text in samples if made.encode(text).ids != tokenizer.encode(text)]
    if not other:
        return ()
    return (
        f"tokenizer.json, made of {path.name}, gives different ids from sentencepiece for {len(other)} of "
        f"{len(samples)} "
        f"sample texts, e.g. {min(other, key=len)!r}; tokenizer.model in the folder is the original",
    )


def convert(tokenizer: SentencePieceTokenizer) -> Any:
    """Return a ``tokenizers.Tokenizer`` with the ids of ``tokenizer``.

    Raises:
        DataError: the model is neither BPE nor Unigram.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, processors

    processor = tokenizer.processor
    facts = read_facts(processor.serialized_model_proto())
    pieces = [processor.id_to_piece(number) for number in range(len(processor))]
    made = Tokenizer(_model(tokenizer, facts, pieces))
    steps: list[Any] = [normalizers.Precompiled(facts.charsmap)] if facts.charsmap else []
    if facts.squeezes:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    # Not a pre-tokenizer, which adds no blank before one that is there.
    steps += [normalizers.Prepend(BLANK)] if facts.adds_blank else []
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", BLANK)])
    ending = [decoders.Strip(" ", left=1)] if facts.adds_blank else []
    made.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *ending])
    special = [pieces[number] for number in range(len(processor)) if processor.is_control(number)]
    added = sorted(tokenizer.found.items(), key=lambda each: each[1])
    made.add_special_tokens([AddedToken(name, normalized=False) for name in (*special, *(name for name, _ in added))])
    made.add_tokens([AddedToken(piece, normalized=False) for piece in facts.symbols])
    for name, number in added:
        if made.token_to_id(name) != number:
            raise DataError(f"{tokenizer.spec.model}: {name} cannot have the id {number} in a tokenizer.json")
    if tokenizer.prefix:
        first = pieces[tokenizer.prefix[0]]
        made.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, tokenizer.prefix[0])]
        )
    return made


def _model(tokenizer: SentencePieceTokenizer, facts: Facts, pieces: list[str]) -> Any:
    """Return what cuts words into pieces."""
    from tokenizers import models

    processor, numbers = tokenizer.processor, range(len(pieces))
    scores = [processor.get_score(number) for number in numbers]
    has_bytes = any(processor.is_byte(number) for number in numbers)
    if facts.kind == _UNIGRAM:
        return models.Unigram(
            list(zip(pieces, scores, strict=True)), unk_id=processor.unk_id(), byte_fallback=has_bytes
        )
    if facts.kind != _BPE:
        raise DataError(f"{tokenizer.spec.model}: is neither BPE nor Unigram; transformers reads only these")
    kinds = (processor.is_control, processor.is_byte, processor.is_unknown, processor.is_unused)
    usable = {piece for number, piece in enumerate(pieces) if not any(of(number) for of in kinds)}
    vocab = {piece: number for number, piece in enumerate(pieces)}
    merges, unknown = _merges(vocab, scores, usable), pieces[processor.unk_id()]
    return models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)


def _merges(vocab: dict[str, int], scores: list[float], usable: set[str]) -> list[tuple[str, str]]:
    """Return every pair of pieces that make a third, in the order in which sentencepiece prefers them: by its score."""
    found = []
    for piece in usable:
        number = vocab[piece]
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in usable and right in usable:
                found.append((-scores[number], number, len(left), left, right))
    return [(left, right) for *_, left, right in sorted(found)]


def read_facts(content: bytes) -> Facts:
    """Return what a ``.model`` says besides its pieces."""
    parts: dict[int, bytes] = {}
    symbols = []
    for field, value in fields(content):
        if isinstance(value, bytes):
            parts[field] = value
            piece = dict(fields(value)) if field == _PIECE else {}
            if piece.get(3) == _USER_DEFINED:
                symbols.append(bytes(piece[1]).decode())
    trainer, rules = dict(fields(parts.get(2, b""))), dict(fields(parts.get(3, b"")))
    charsmap = rules.get(2, b"")
    # The defaults of the format: Unigram, a blank before every text, no runs of blanks.
    return Facts(
        int(trainer.get(3, _UNIGRAM)),
        charsmap if isinstance(charsmap, bytes) else b"",
        bool(rules.get(3, 1)),
        bool(rules.get(4, 1)),
        tuple(symbols),
    )


def fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of every field of a message."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(content, at)
            yield field, value
        elif wire == 2:
            size, at = _varint(content, at)
            yield field, content[at : at + size]
            at += size
        else:
            size = {1: 8, 5: 4}[wire]
            yield field, content[at : at + size]
            at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
