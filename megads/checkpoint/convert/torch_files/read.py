"""Read what ``torch.save`` wrote, whoever wrote it, without running anything of it.

Megatron's files hold tensors besides objects of its own: an ``argparse.Namespace``, enums,
generator states of numpy. A pickle names the class or function that makes each. Here none of these is
ever imported: torch's restricted reader makes tensors and plain values, and a
:class:`StandIn` keeps what a known program's object was made of. Any other name ends the reading.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import torch

from megads.checkpoint.convert.torch_files.safe_types import nothing_but
from megads.checkpoint.convert.torch_files.zip_checksums import is_zip, verify_zip
from megads.errors import CheckpointError
from megads.storage.open_file import kind_of

PROGRAMS = {
    *("megatron", "deepspeed", "apex", "amp_C", "transformer_engine", "transformer_engine_torch"),
    *("numpy", "torch", "fp16"),
}
"""Packages whose objects are found in such files; ``fp16`` was Megatron's in 2019."""

PLAIN = {
    *("argparse.Namespace", "types.SimpleNamespace", "enum.Enum", "signal.Signals", "_io.BytesIO"),
    *("pathlib.Path", "pathlib.PosixPath", "pathlib.PurePosixPath", "pathlib._local.PosixPath"),
    *("collections.deque", "datetime.datetime", "datetime.timedelta", "datetime.date"),
    *("builtins.getattr", "builtins.slice", "builtins.range", "builtins.object"),
    *("copyreg._reconstructor", "copy_reg._reconstructor"),
}
"""Further names found in them. Python 3.11 writes an enum as ``getattr(class, name)``."""

_NAMED = (re.compile(r"GLOBAL (\S+) was not an allowed"), re.compile(r"unsupported GLOBAL (\S+) whose module"))


class StandIn:
    """An object of a class that was not imported: ``arguments`` it was made of, and its attributes."""

    arguments: tuple[Any, ...] = ()

    def __new__(cls, *arguments: Any) -> StandIn:
        """Keep what the object would be made of."""
        made = super().__new__(cls)
        made.arguments = arguments
        return made

    def __init__(self, *arguments: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            vars(self).update(state)

    @property
    def last(self) -> Any:
        """The last argument: of an enum its value, or its name in the form of Python 3.11."""
        return self.arguments[-1] if self.arguments else None


def load(path: Path) -> Any:
    """Return the content of ``path``. Tensors of today's zip form are read from the file when they are used.

    Raises:
        CheckpointError: the file cannot be read, is damaged, or names code that is no part of a checkpoint.
    """
    known: dict[str, type[StandIn]] = {}
    zipped = _verified(path)
    while True:
        try:
            return _load(path, known, zipped)
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror or error}; use a file that you can read") from None
        except Exception as error:  # a damaged pickle fails in any way there is
            name = _refused(error)
            if name is None or name in known:
                reason = str(error).strip().split("\n")[0].split(". ")[0][:200] or type(error).__name__
                raise CheckpointError(
                    f"{path}: not a readable file of torch.save ({reason}); it is damaged, or something else"
                ) from None
            if not _is_known(name):
                raise CheckpointError(
                    f"{path}: names {name}, which does not belong in a checkpoint; nothing was executed, do "
                    "not trust this file"
                ) from None
            known[name] = type("StandIn", (StandIn,), {"__module__": __name__})


def _verified(path: Path) -> bool:
    """Return whether the file is a zip, all of whose members are then what was written."""
    try:
        if found := kind_of(path):
            raise CheckpointError(f"{path}: is {found}; use a file that you can read")
        zipped = is_zip(path)
        if zipped:
            verify_zip(path)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}; use a file that you can read") from None
    return zipped


def _load(path: Path, known: dict[str, type[StandIn]], zipped: bool) -> Any:
    with warnings.catch_warnings(), nothing_but([(kind, name) for name, kind in known.items()]):
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)


def _refused(error: Exception) -> str | None:
    """Return the global that torch's reader does not know, None if it failed for another reason."""
    found = next((match[1] for each in _NAMED if (match := each.search(str(error)))), None)
    # The reader leaves "builtins." out.
    return f"builtins.{found}" if found is not None and "." not in found else found


def _is_known(name: str) -> bool:
    return name in PLAIN or name.split(".")[0] in PROGRAMS
