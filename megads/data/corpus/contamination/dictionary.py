"""The n-grams of tasks in a file: JSON, or a pickle of Megatron-LM's filter_ngrams.py."""

from __future__ import annotations

import json
import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from megads.errors import DataError
from megads.storage.open_file import open_binary
from megads.storage.reading import Bounds, read_json

_MOST = 8 << 30  # bytes


class _OnlyData(pickle.Unpickler):
    """Reads texts, numbers and dicts of them. Anything else could run code."""

    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"holds {module}.{name}, not only n-grams")


def save_ngrams(path: Path, ngrams: Collection[str]) -> None:
    """Write n-grams in the order of the alphabet."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"ngrams": sorted(ngrams)}, file, ensure_ascii=False)
        file.write("\n")


def load_ngrams(path: str, most: int) -> frozenset[str]:
    """Return the n-grams of a file.

    Args:
        path: of the file.
        most: words of an n-gram, at most.

    Raises:
        DataError: it cannot be read, or holds something else or longer n-grams.
    """
    try:
        found = _read(path)
    except OSError as error:
        reason = str(error.strerror or error).lower()
        raise DataError(f"--load-dictionary {path}: cannot be read: {reason}") from None
    except (Bounds, pickle.UnpicklingError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _wrong(path, str(error) or type(error).__name__) from None
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        raise _wrong(path, "has no list of n-grams")
    longest = max((each.count(" ") + 1 for each in found), default=0)
    if longest > most:
        raise DataError(f"--load-dictionary {path}: has n-grams of {longest} words; pass --max-ngram-size {longest}")
    return frozenset(found)


def _read(path: str) -> Any:
    with open_binary(path) as file:
        is_pickle = file.read(1) == b"\x80"
        file.seek(0)
        content = _OnlyData(file).load() if is_pickle else read_json(path, _MOST)
    if is_pickle:
        return list(content) if isinstance(content, dict) else None
    return content.get("ngrams") if isinstance(content, dict) else None


def _wrong(path: str, reason: str) -> DataError:
    return DataError(
        f"--load-dictionary {path}: {reason}; expected a file of --save-dictionary, or a pickle of Megatron-LM's"
    )
