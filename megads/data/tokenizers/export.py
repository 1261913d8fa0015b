"""Write a tokenizer as transformers reads it: tokenizer.json, tokenizer_config.json, special_tokens_map.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.data.tokenizers import build, sentencepiece_json
from megads.data.tokenizers.base import Tokenizer, TokenizerSpec
from megads.data.tokenizers.types import gpt2
from megads.data.tokenizers.types.files import read_json
from megads.data.tokenizers.types.huggingface import HFTokenizer, named_tokens
from megads.data.tokenizers.types.sentencepiece import SentencePieceTokenizer
from megads.errors import ConfigError, DataError
from megads.storage.tokenizer_files import wrong_kind

CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"
_ROLES = ("bos", "eos", "pad")
_BESIDE = ("added_tokens.json", "chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt")
"""Further files of a Hugging Face folder that go along."""


@dataclass(frozen=True)
class Saved:
    """What was written.

    Attributes:
        ids: of the tokens bos, eos and pad, as far as there are such.
        notes: what does not come out as it was.
    """

    ids: Mapping[str, int]
    notes: tuple[str, ...] = ()


def save_for_transformers(spec: TokenizerSpec, folder: Path, length: int) -> Saved:
    """Write the tokenizer that ``spec`` describes to ``folder``, for ``AutoTokenizer.from_pretrained``.

    Args:
        spec: any type but NullTokenizer, which has no texts.
        folder: to which the files are added.
        length: tokens that the model reads at most.

    Raises:
        ConfigError: the type cannot be written so.
        DataError: its files are not there or are broken.
        DependencyError: its library is not installed.
        OSError: a file cannot be written.
    """
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
        notes = sentencepiece_json.save(tokenizer, folder)
    else:
        raise ConfigError(f"TOKENIZER_TYPE={spec.type} cannot be written for transformers")
    ids = _roles(tokenizer)
    named = {f"{role}_token": _name(tokenizer, number, folder) for role, number in ids.items()}
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


def _name(tokenizer: Tokenizer, number: int, folder: Path) -> str:
    """Return the token of an id, as the file that was written has it."""
    import tokenizers

    if isinstance(tokenizer, (HFTokenizer, gpt2.GPT2Tokenizer)):
        return str(tokenizer.inner.id_to_token(number))
    return str(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).id_to_token(number))


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
