"""A ``tokenizer.json``, run by the tokenizers library. Nothing is downloaded.

As transformers' ``encode``, which Megatron's preprocessing calls for these types, encoding adds the tokens that the
file's post-processor puts around a text (``<s>`` for Llama, ``[CLS]`` and ``[SEP]`` for BERT, nothing for GPT-2).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.data.tokenizers.base import Specials, TokenizerSpec
from megads.data.tokenizers.types.files import MOST_TOKENS, fingerprint, read_json
from megads.errors import ConfigError, DataError

EOD_NAMES = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|im_end|>", "[SEP]")
"""Names of the token at the end of a document, in the order they are looked for."""

NAMES = {
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "[BOS]"),
    "eos": EOD_NAMES,
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "mask": ("[MASK]", "<mask>"),
}
"""Names of tokens with a meaning, looked for where the folder's tokenizer_config.json names none."""

WHAT = "a tokenizer.json of the tokenizers library"


@dataclass(frozen=True)
class HFTokenizer:
    """Runs a ``tokenizers.Tokenizer``."""

    inner: Any  # tokenizers.Tokenizer
    vocab_size: int
    specials: Specials
    path: Path
    extra_ids: int = 0

    @property
    def eod(self) -> int:
        """Id of the end-of-sequence token: the one tokenizer_config.json names, else the first of EOD_NAMES there is.

        A special token comes before a piece of the vocabulary that only has such a name.

        Raises:
            ConfigError: the vocabulary has not the one that is named, or none of them.
        """
        if self.specials.eos is not None:
            return self.specials.eos
        if name := named_tokens(self.path.parent).get("eos_token"):
            raise ConfigError(
                f"{self.path}: has no {name!r}, which tokenizer_config.json names as eos_token; correct one"
            )
        raise ConfigError(
            f"{self.path}: has none of {', '.join(EOD_NAMES)} to end a document with; "
            "set eos_token in a tokenizer_config.json in the same folder"
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the file's content, without what does not change ids."""
        return _identity(read_json(self.path, WHAT), self.extra_ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` with what the post-processor puts around it."""
        return list(self.inner.encode(text).ids)

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of ``text`` alone."""
        return list(self.inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, special tokens included."""
        return str(self.inner.decode(ids, skip_special_tokens=False))


def make(spec: TokenizerSpec) -> HFTokenizer:
    """Return the tokenizer in the file or folder ``spec.model``."""
    import tokenizers

    path = find_tokenizer_json(spec.model)
    size = _vocab_size(_read(path), path)
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for whatever it cannot read
        raise DataError(f"{path}: the tokenizers library {tokenizers.__version__} cannot read it: {error}") from None
    # Some files carry the limits of the model they were saved with; data must not lose text to them.
    inner.no_truncation()
    inner.no_padding()
    extra = [f"<extra_id_{number}>" for number in range(spec.extra_ids)]
    inner.add_special_tokens([name for name in extra if inner.token_to_id(name) is None])
    specials = _find_specials(inner, path)
    size = max([size, *(number + 1 for number in specials.extra)])
    return HFTokenizer(inner, size, specials, path, spec.extra_ids)


def vocab_size(spec: TokenizerSpec) -> int:
    """Return the largest id + 1, without loading the tokenizer itself unless it adds tokens."""
    if spec.extra_ids:
        return make(spec).vocab_size
    path = find_tokenizer_json(spec.model)
    return _vocab_size(_read(path), path)


def identity(spec: TokenizerSpec) -> str:
    """Return the fingerprint without loading the tokenizer itself."""
    return _identity(_read(find_tokenizer_json(spec.model)), spec.extra_ids)


def find_tokenizer_json(name: str) -> Path:
    """Return the ``tokenizer.json`` that ``name`` is, or that lies in the folder ``name``.

    Raises:
        ConfigError: no name is given.
        DataError: there is none; the message says what would work with what is there.
    """
    if not name:
        raise ConfigError(
            "no tokenizer is set; set TOKENIZER_MODEL (--tokenizer-model) to a tokenizer.json or its folder, or "
            "TOKENIZER_TYPE (--tokenizer-type) to another kind"
        )
    path = Path(os.path.expanduser(name))
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        raise DataError(
            f"TOKENIZER_MODEL {name}: no such file or folder; nothing is downloaded, so pass a local tokenizer.json "
            "or its folder (`hf download NAME tokenizer.json --local-dir DIR` fetches one)"
        )
    if not (path / "tokenizer.json").is_file():
        raise DataError(f"TOKENIZER_MODEL {name}: the folder has no tokenizer.json; {_other_way(path)}")
    return path / "tokenizer.json"


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a tokenizer.json; DataError where it cannot be read, or draws ids at random."""
    content = read_json(path, WHAT)
    model = content.get("model")
    if isinstance(model, dict) and (dropout := model.get("dropout")):
        raise DataError(
            f"{path}: has BPE dropout {dropout}, which encodes a text differently every time; set "
            "model.dropout to null in a copy of it"
        )
    return content


def _other_way(folder: Path) -> str:
    """Say how to use a folder that holds only the files of a slow tokenizer."""
    cure = "transformers writes one with AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)"
    if (folder / "merges.txt").is_file() and (folder / "vocab.json").is_file():
        return f"use TOKENIZER_TYPE=GPT2BPETokenizer with its vocab.json and merges.txt, or {cure}"
    if (folder / "tokenizer.model").is_file():
        return f"use TOKENIZER_TYPE=Llama2Tokenizer or GPTSentencePieceTokenizer with its tokenizer.model, or {cure}"
    if (folder / "vocab.txt").is_file():
        return f"use TOKENIZER_TYPE=BertWordPieceCase or BertWordPieceLowerCase with its vocab.txt, or {cure}"
    return cure


def _vocab_size(content: dict[str, Any], path: Path) -> int:
    """Return the largest id + 1. Added tokens often lie beyond the base vocabulary (Llama 3)."""
    try:
        vocab = content["model"]["vocab"]
        # Unigram models keep a list of [piece, score]; the others map pieces to ids.
        largest = max(vocab.values()) if isinstance(vocab, dict) else len(vocab) - 1
        size = 1 + max([largest, *(token["id"] for token in content.get("added_tokens") or ())])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{path}: holds no vocabulary; expected {WHAT}") from None
    if not 0 < size <= MOST_TOKENS:
        raise DataError(f"{path}: its largest id is {size - 1}, token files hold 0..{MOST_TOKENS - 1}; expected {WHAT}")
    return size


def _identity(content: dict[str, Any], extra_ids: int) -> str:
    """Hash what decides ids: not the limits of length, not the way back to text, not the two spellings of merges."""
    decides = {key: value for key, value in content.items() if key not in ("truncation", "padding", "decoder")}
    model = dict(content.get("model") or {})
    if isinstance(model.get("merges"), list):
        model["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    return fingerprint("tokenizer.json", {**decides, "model": model}, extra_ids)


def _find_specials(inner: Any, path: Path) -> Specials:
    found: dict[str, int | None] = {}
    named = named_tokens(path.parent)
    added = {token.content: token.special for token in inner.get_added_tokens_decoder().values()}
    for role, names in NAMES.items():
        # Special tokens first, then other added ones, then pieces of the vocabulary.
        guesses = sorted(names, key=lambda name: (not added.get(name, False), name not in added))
        wanted = [named[f"{role}_token"]] if f"{role}_token" in named else guesses
        ids = (inner.token_to_id(name) for name in wanted)
        found[role] = next((each for each in ids if each is not None), None)
    extra: list[int] = []
    while (each := inner.token_to_id(f"<extra_id_{len(extra)}>")) is not None:
        extra.append(each)
    return Specials(**found, extra=tuple(extra))


def named_tokens(folder: Path) -> dict[str, str]:
    """Return what the folder's tokenizer_config.json, then special_tokens_map.json, call their special tokens."""
    named: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            for role, token in read_json(folder / name, "settings of transformers").items():
                text = token.get("content") if isinstance(token, dict) else token
                if isinstance(text, str):
                    named[role] = text
    return named
