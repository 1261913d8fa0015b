"""What was exported is read back and compared with what the run computed, before it appears."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megads.cli.generate import replays
from megads.errors import CheckpointError

if TYPE_CHECKING:
    from megads.checkpoint.format.manifest import Manifest


def replayed(source: Path, manifest: Manifest, said: list[str]) -> Callable[[str, Path], None]:
    """Return what compares an export of the checkpoint ``source`` with it, and adds a line about that to ``said``.

    It is called with the dtype of the export and its folder, and raises CheckpointError where that computes another
    function. ``REPLAY_ROWS=0`` in the environment skips it, and so does a host without torch.
    """

    def check(dtype: str, folder: Path) -> None:
        from megads.checkpoint.function.record import record_of

        if record_of(manifest) is None or not replays():
            return
        if find_spec("torch") is None:
            said.append("not replayed: torch is not installed")
            return
        from megads.inference.replay import check_files

        said.append(f"replay: {check_files(source, manifest, dtype, folder)}")

    return check


def described(place: Path) -> Callable[[], Mapping[str, Any]]:
    """Return what finds entries of ``about`` on the function of an imported model; none where nothing is compared."""

    def describe() -> Mapping[str, Any]:
        if not replays() or find_spec("torch") is None:
            return {}
        from megads.inference.replay import describe_files

        try:
            return describe_files(place)
        except CheckpointError:  # of a model that was imported, but that nothing runs alone: the head of a task
            return {}

    return describe
