"""Text to token ids and back, from a local ``tokenizer.json`` or without one; nothing is downloaded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from megads.config.schema import RunConfig
from megads.data import demo
from megads.errors import ConfigError, DataError

EOD_NAMES = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|im_end|>", "[SEP]")
"""Names of the token at the end of a document, in the order they are looked for."""


class Tokenizer(Protocol):
    """What the data and the model need of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Largest id + 1, added tokens included."""

    @property
    def eod(self) -> int:
        """Id of the token that ends a document."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; nothing is added at its ends."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of ``ids``, special tokens included."""


@dataclass(frozen=True)
class HFTokenizer:
    """A ``tokenizer.json``, run by the ``tokenizers`` library."""

    inner: Any  # tokenizers.Tokenizer
    vocab_size: int
    eod: int

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; nothing is added at its ends."""
        ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of ``ids``, special tokens included."""
        text: str = self.inner.decode(ids, skip_special_tokens=False)
        return text


@dataclass(frozen=True)
class NullTokenizer:
    """No tokenizer: text is ids with blanks between them; the last id of the vocabulary is the end of a document."""

    vocab_size: int

    @property
    def eod(self) -> int:
        """``vocab_size - 1``."""
        return self.vocab_size - 1

    def encode(self, text: str) -> list[int]:
        """Return the ids written in ``text``."""
        try:
            ids = [int(word) for word in text.split()]
        except ValueError:
            raise DataError(f"NullTokenizer: {text[:40]!r} is not a row of token ids") from None
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            raise DataError(f"NullTokenizer: ids must be 0..{self.vocab_size - 1}, got {min(ids)}..{max(ids)}")
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return ``ids`` with blanks between them."""
        return " ".join(map(str, ids))


def vocab_size_of(run: RunConfig) -> int:
    """Return the size of the run's vocabulary, without loading the tokenizer itself.

    For the demo corpus that is ``run.data.demo_vocab_size``, whether or not the corpus is made yet.

    Raises:
        ConfigError: the settings name no tokenizer, or no vocabulary size where one is needed.
        DataError: the tokenizer is not there or is broken.
    """
    if run.data.tokenizer_type == "NullTokenizer":
        return _null_vocab_size(run)
    if _uses_demo(run):
        return run.data.demo_vocab_size
    path = _tokenizer_file(run.data.tokenizer_model)
    return _vocab_size(_read_json(path), path)


def load_tokenizer(run: RunConfig) -> Tokenizer:
    """Return the run's tokenizer; errors as in :func:`vocab_size_of`."""
    if run.data.tokenizer_type == "NullTokenizer":
        return NullTokenizer(_null_vocab_size(run))
    if _uses_demo(run):
        demo.read_demo(run)
        return read_tokenizer(str(demo.demo_prefix(run).parent), vocab_size=run.data.demo_vocab_size)
    return read_tokenizer(run.data.tokenizer_model)


def read_tokenizer(name: str, *, vocab_size: int = 0) -> HFTokenizer:
    """Return the tokenizer in the file or folder ``name``.

    Args:
        name: a ``tokenizer.json``, or a folder with one.
        vocab_size: what to report; 0: what the file says.
    """
    import tokenizers

    path = _tokenizer_file(name)
    content = _read_json(path)
    size = _vocab_size(content, path)
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for whatever it can not read
        raise DataError(f"{path}: the tokenizers library {tokenizers.__version__} can not read it: {error}") from None
    # Some files carry the limits of the model they were saved with; data must not lose text to them.
    inner.no_truncation()
    inner.no_padding()
    return HFTokenizer(inner, vocab_size or size, _find_eod(inner, path))


def _uses_demo(run: RunConfig) -> bool:
    if run.data.tokenizer_model:
        return False
    if run.data.file_list:
        raise ConfigError(
            f"DATA_FILE_LIST={run.data.file_list} is given without a tokenizer; set TOKENIZER_MODEL to the "
            "tokenizer.json the data was made with, or TOKENIZER_TYPE=NullTokenizer and VOCAB_SIZE"
        )
    return True


def _null_vocab_size(run: RunConfig) -> int:
    if run.model.vocab_size == 0:
        raise ConfigError("TOKENIZER_TYPE=NullTokenizer has no vocabulary of its own; set VOCAB_SIZE")
    return run.model.vocab_size


def _tokenizer_file(name: str) -> Path:
    path = Path(os.path.expanduser(name))
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        raise DataError(
            f"TOKENIZER_MODEL {name}: no such file or folder; nothing is downloaded, so give a local tokenizer.json "
            "or its folder (`hf download NAME tokenizer.json --local-dir DIR` fetches one)"
        )
    if not (path / "tokenizer.json").is_file():
        raise DataError(
            f"TOKENIZER_MODEL {name}: the folder has no tokenizer.json; transformers writes one with "
            "AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)"
        )
    return path / "tokenizer.json"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {str(error.strerror).lower()}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path}: is not JSON; expected a tokenizer.json of the tokenizers library") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object, a tokenizer.json of the tokenizers library")
    return content


def _vocab_size(content: dict[str, Any], path: Path) -> int:
    """Return the largest id + 1. Added tokens often lie beyond the base vocabulary (Llama 3)."""
    try:
        vocab = content["model"]["vocab"]
        # Unigram models keep a list of [piece, score]; the others map pieces to ids.
        largest = max(vocab.values()) if isinstance(vocab, dict) else len(vocab) - 1
        return 1 + max([largest, *(token["id"] for token in content.get("added_tokens") or ())])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise DataError(f"{path}: holds no vocabulary; expected a tokenizer.json of the tokenizers library") from None


def _find_eod(inner: Any, path: Path) -> int:
    names = list(EOD_NAMES)
    config = path.parent / "tokenizer_config.json"
    if config.is_file():
        token = _read_json(config).get("eos_token")
        name = token.get("content") if isinstance(token, dict) else token
        if isinstance(name, str):
            names.insert(0, name)
    for name in names:
        found: int | None = inner.token_to_id(name)
        if found is not None:
            return found
    raise DataError(
        f"{path}: has none of {', '.join(names)} to end a document with; "
        "name its token as eos_token in a tokenizer_config.json beside it"
    )
