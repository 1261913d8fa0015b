"""Write a tokenizer as transformers reads it: tokenizer.json, tokenizer_config.json, special_tokens_map.json.

A ``.model`` of the sentencepiece library becomes a ``tokenizer.json``. What is not in the library's interface (the
kind of model, the table of the normalizer) is read from the file itself: fields of a message of protocol buffers,
numbered as in sentencepiece_model.proto.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.data.tokenizers import build
from megads.data.tokenizers import export_word_pieces as word_pieces
from megads.data.tokenizers.base import Tokenizer, TokenizerSpec
from megads.data.tokenizers.encoders.proof import BITS
from megads.data.tokenizers.types import gpt2
from megads.data.tokenizers.types.bert import WordPieceTokenizer
from megads.data.tokenizers.types.files import read_json
from megads.data.tokenizers.types.huggingface import HFTokenizer, named_tokens
from megads.data.tokenizers.types.sentencepiece import SentencePieceTokenizer
from megads.errors import ConfigError, DataError
from megads.storage.tokenizer_files import wrong_kind

CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"
_ROLES = ("bos", "eos", "pad")
_BESIDE = ("added_tokens.json", "chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt")
"""Further files of a Hugging Face folder that go along."""

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
class Saved:
    """What was written."""

    ids: Mapping[str, int]  # of the tokens bos, eos and pad, as far as there are such
    notes: tuple[str, ...] = ()  # what does not come out as it was


def save_for_transformers(spec: TokenizerSpec, folder: Path, length: int) -> Saved:
    """Write the tokenizer that ``spec`` describes to ``folder``, for ``AutoTokenizer.from_pretrained``.

    The model reads at most ``length`` tokens.

    Raises:
        ConfigError: the type cannot be written so: NullTokenizer has no texts.
        OSError: a file cannot be written.
    """
    import tokenizers

    tokenizer = build.make_tokenizer(spec)
    notes: tuple[str, ...] = ()
    config: dict[str, Any] = {}
    if isinstance(tokenizer, HFTokenizer):
        config = _copy(tokenizer, folder)
    elif isinstance(tokenizer, gpt2.GPT2Tokenizer):
        tokenizer.inner.save(str(folder / "tokenizer.json"))
        for name, path in zip(("vocab.json", "merges.txt"), gpt2.paths(spec), strict=True):
            shutil.copyfile(path, folder / name)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        notes = _save_sentencepiece(tokenizer, folder)
    elif isinstance(tokenizer, WordPieceTokenizer):
        config, notes = _save_word_pieces(tokenizer, folder)
    else:
        raise ConfigError(f"TOKENIZER_TYPE={spec.type} cannot be written for transformers")
    ids, written = _roles(tokenizer), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    named = {f"{role}_token": str(written.id_to_token(number)) for role, number in ids.items()}
    defaults = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": length}
    config = {**defaults, **named, "clean_up_tokenization_spaces": False, **config}
    _write(folder / CONFIG, config)
    if not (folder / MAP).exists():
        _write(folder / MAP, {key: value for key, value in config.items() if key in named})
    return Saved(ids, notes)


def _roles(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of bos, eos and pad, as far as training used them or the tokenizer's files name them.

    A token of the vocabulary that looks like one is none: evaluation puts bos before every text, and
    transformers finds all three in texts.
    """
    found = {role: number for role in _ROLES if (number := getattr(tokenizer.specials, role)) is not None}
    if isinstance(tokenizer, WordPieceTokenizer):
        return {"pad": found["pad"]}
    named: set[str] = set()
    if isinstance(tokenizer, HFTokenizer):
        named = {role for role in _ROLES if f"{role}_token" in named_tokens(tokenizer.path.parent)}
        if "pad" not in named and "pad" in found:
            added = tokenizer.inner.get_added_tokens_decoder().get(found["pad"])
            if added is None or not added.special:
                del found["pad"]
    if "bos" in found and "bos" not in named and found["bos"] not in tokenizer.encode("")[:1]:
        del found["bos"]
    return found


def _copy(tokenizer: HFTokenizer, folder: Path) -> dict[str, Any]:
    """Copy the files of a Hugging Face folder; return what its tokenizer_config.json says."""
    if tokenizer.extra_ids:
        tokenizer.inner.save(str(folder / "tokenizer.json"))
    else:
        shutil.copyfile(tokenizer.path, folder / "tokenizer.json")
    beside = tokenizer.path.parent
    for name in (*_BESIDE, MAP, "tokenizer.model"):
        if (beside / name).is_file():
            if problem := wrong_kind(beside / name):
                raise DataError(f"{beside / name}: {problem}; remove it, or fetch the tokenizer again")
            shutil.copyfile(beside / name, folder / name)
    return read_json(beside / CONFIG, "settings of transformers") if (beside / CONFIG).is_file() else {}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf8")


def _save_word_pieces(tokenizer: WordPieceTokenizer, folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Write ``tokenizer.json`` and ``vocab.txt``; return settings, and a note if some texts come out otherwise."""
    config = word_pieces.save(tokenizer, folder)
    other = word_pieces.differing(tokenizer, _SAMPLES, folder / "tokenizer.json")
    if not other:
        return config, ()
    text = min(other, key=len)
    return config, (f"tokenizer.json gives other ids for {len(other)} of {len(_SAMPLES)} sample texts, e.g. {text!r}",)


@dataclass(frozen=True)
class Facts:
    """What the file says besides its pieces."""

    kind: int
    charsmap: bytes
    adds_blank: bool  # before every text
    squeezes: bool  # runs of blanks, and those at the ends
    symbols: tuple[str, ...]  # pieces that are never cut and never joined


def _save_sentencepiece(tokenizer: SentencePieceTokenizer, folder: Path) -> tuple[str, ...]:
    """Write ``tokenizer.json`` and the ``.model`` itself; return a note if some texts come out otherwise.

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
        f"{len(samples)} sample texts, e.g. {min(other, key=len)!r}; tokenizer.model in the folder is the original",
    )


def convert(tokenizer: SentencePieceTokenizer) -> Any:
    """Return a ``tokenizers.Tokenizer`` with the ids of a BPE or Unigram model; DataError for other models."""
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
