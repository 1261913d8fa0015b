"""Compiled code in the run's folder, so that a restart, and hosts that join, do not compile it again."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from megads.models.kernels.probe import in_a_line

FOLDER = "compiled"
"""In the run's folder."""


class CompileCache:
    """What one pipeline stage compiled, for all of its ranks.

    The compiler's own cache, in ``TORCHINDUCTOR_CACHE_DIR``, is on each host. What it holds for
    another version, device or graph is not used.

    Args:
        folder: of the run, on all hosts.
        writes: whether this rank is the one of its stage that writes.

    Attributes:
        problem: what kept :meth:`load` from using what is there; empty: nothing.
    """

    def __init__(self, folder: Path, stage: int, *, writes: bool):
        self.path = folder / FOLDER / f"stage-{stage}-torch-{torch.__version__}.bin"
        self.writes = writes and hasattr(torch.compiler, "save_cache_artifacts")
        self.problem = ""

    def load(self) -> bool:
        """Fill the host's cache; return whether there was something to fill it with."""
        if not hasattr(torch.compiler, "load_cache_artifacts"):  # torch 2.6
            return False
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return False
        except OSError as error:
            return self._is_unused(error)
        try:
            return torch.compiler.load_cache_artifacts(content) is not None
        except Exception as error:  # of any kind: of damaged content, of the host's cache folder
            return self._is_unused(error)

    def _is_unused(self, error: Exception) -> bool:
        self.problem = f"compiled code of an earlier start is not used ({self.path}): {in_a_line(error)}"
        return False

    def save(self) -> str:
        """Write all that was compiled so far; return what kept it from that."""
        found = torch.compiler.save_cache_artifacts() if self.writes else None
        if found is None:
            return ""
        unfinished = self.path.with_suffix(".unfinished")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(found[0])
            os.replace(unfinished, self.path)
        except OSError as error:
            return f"compiled code is not kept for a restart: {error}"
        return ""
