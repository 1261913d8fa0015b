"""Which checkpoint a run starts from, and what it takes of it; without torch.

A run resumes from its own checkpoints. ``LOAD`` says how it begins, while it has none, and
then ``CKPT_STEP``, ``FINETUNE`` and ``NO_LOAD_OPTIM`` speak of ``LOAD`` too:
rerunning the same command resumes. Without ``LOAD`` they
speak of the run's own checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megads.checkpoint.format.folders import (
    NAME,
    CheckpointRef,
    candidates,
    checkpoints_in,
    iteration_of,
    list_checkpoints,
)
from megads.checkpoint.format.manifest import MANIFEST, Manifest, read_manifest
from megads.checkpoint.resume.compatibility import check_model
from megads.checkpoint.resume.other_programs import foreign_kind
from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import RunConfig
from megads.config.tree import env_name
from megads.errors import CheckpointError


@dataclass(frozen=True)
class RestorePlan:
    """What a run takes of a checkpoint besides the weights."""

    progress: bool  # iteration, position in the data, and the schedule, which follows from it
    optimizer: bool
    imported: bool = False  # weights of another program, which come with nothing else

    def text(self) -> str:
        """Return what is taken and what not, in words."""
        if self.imported:
            return "imported weights"
        parts = {"optimizer": self.optimizer, "position": self.progress}
        left = [name for name, is_taken in parts.items() if not is_taken]
        taken = ["weights", *(name for name in parts if name not in left)]
        return _listed(taken) + (f", not {_listed(left, 'or')}" if left else "")


@dataclass(frozen=True)
class Start:
    """The checkpoints from which a run may start.

    Attributes:
        paths: oldest first, at least one.
        is_own: whether they are the run's own, not those of ``LOAD``.
        is_only: whether the user named one, which no other may replace.
        has_begun: whether the run began by ``LOAD`` and continues now, so that what was said of the beginning is done.
    """

    paths: tuple[Path, ...]
    is_own: bool
    is_only: bool = False
    has_begun: bool = False

    def candidates(self) -> Iterator[CheckpointRef]:
        """Yield those whose manifest and sizes are right, the newest first; the user's own choice alone.

        Raises:
            CheckpointError: none is right, or not the one that the user named.
        """
        if self.is_only:
            path = self.paths[-1]
            yield CheckpointRef(path, read_manifest(path))
        else:
            yield from candidates(list(self.paths))


def find_start(run: RunConfig, own: Path) -> Start | None:
    """Return where a run starts, None when that is with new weights.

    Args:
        run: the settings.
        own: the folder of the run's checkpoints.

    Raises:
        CheckpointError: there is nothing where the settings say, it cannot be read, or they contradict each other.
    """
    try:
        return _find_start(run, own)
    except OSError as error:
        raise CheckpointError(f"{error.filename}: {error.strerror}; use a folder that you can read") from None


def _find_start(run: RunConfig, own: Path) -> Start | None:
    wanted = run.checkpoint
    mine, step = list_checkpoints(own), wanted.step
    is_other = bool(wanted.load) and not names_own(wanted.load, own)
    if wanted.finetune and not is_other:
        _refuse_finetune(wanted.load)
    if mine and not (mine[-1] / MANIFEST).exists() and (kind := foreign_kind(own)):
        raise CheckpointError(f"{own}: {kind}; use another CKPT_DIR and LOAD=DST")
    if is_other and mine:
        return Start(tuple(mine), is_own=True, has_begun=True)
    if is_other:
        found = _of_load(Path(wanted.load))
        is_only = bool(step) or found == [Path(wanted.load)]
        return Start(_at(found, step, Path(wanted.load)), is_own=False, is_only=is_only)
    step = goes_back_to(run, own)
    if mine or step:
        return Start(_at(mine, step, own), is_own=True, is_only=bool(step))
    return None


def goes_back_to(run: RunConfig, own: Path) -> int:
    """Return the iteration of the run's own checkpoint that the settings name, 0 when they name none."""
    wanted = run.checkpoint
    if not wanted.load:
        return wanted.step
    if not names_own(wanted.load, own):
        return 0
    return wanted.step or max(iteration_of(Path(wanted.load)), 0)


def names_own(load: str, own: Path) -> bool:
    """Return whether ``LOAD`` is the run's own folder, as scripts of Megatron-LM have it at every start, or in it."""
    # Path.resolve raises on links that go in a circle.
    place, mine = Path(os.path.realpath(load)), Path(os.path.realpath(own))
    return mine in (place, place / "checkpoints", place.parent if NAME.match(place.name) else place)


def _refuse_finetune(load: str) -> None:
    if load:
        raise CheckpointError(
            f"FINETUNE=1 starts a new run with the weights of LOAD={load}, which is this run's own folder; "
            "give the new run another RUN_NAME, RUN_DIR or CKPT_DIR"
        )
    raise CheckpointError("FINETUNE=1 needs the checkpoint whose weights it takes; set LOAD=RUN, or drop FINETUNE")


def _of_load(load: Path) -> list[Path]:
    """Return the checkpoints in ``LOAD``, oldest first."""
    if not os.path.exists(load):
        raise CheckpointError(f"LOAD={load}: not found; pass a run, a folder of checkpoints or one of them")
    found = checkpoints_in(load)
    looks_foreign = not found or not (found[-1] / MANIFEST).exists()
    if looks_foreign and (kind := foreign_kind(load)):
        raise CheckpointError(f"LOAD={load}: {kind}, for LOAD=DST")
    if not found and NAME.match(load.name):
        return [load]
    if not found:
        raise CheckpointError(
            f"LOAD={load}: holds no checkpoint; pass a run, a folder of checkpoints (iter_0000050) or one of them"
        )
    return found


def _at(paths: list[Path], step: int, where: Path) -> tuple[Path, ...]:
    """Return the checkpoint of iteration ``step``, all of them for 0."""
    if not step:
        return tuple(paths)
    found = tuple(path for path in paths if iteration_of(path) == step)
    if not found:
        there = _listed([str(iteration_of(path)) for path in paths][-20:]) if paths else "none"
        raise CheckpointError(f"{where}: no checkpoint of CKPT_STEP={step}; there are: {there}")
    return found


def taken_of(run: RunConfig, start: Start, path: Path, manifest: Manifest) -> RestorePlan:
    """Return what the run takes of the checkpoint ``path`` besides its weights.

    Raises:
        CheckpointError: the optimizer's state is wanted and is not there; or the run was not
            begun by ``FINETUNE``, which is asked for.
    """
    wanted = run.checkpoint
    if wanted.finetune and not start.is_own:
        return RestorePlan(progress=False, optimizer=False)
    earlier = manifest.settings.get("checkpoint", {})
    if wanted.finetune and not earlier.get("finetune"):
        raise CheckpointError(
            f"{path}: the run in this folder did not start with FINETUNE=1; drop it to resume that run, "
            "or use another RUN_NAME or RUN_DIR"
        )
    if run.train.evaluate_only:
        return RestorePlan(progress=True, optimizer=False)
    optimizer = manifest.has_optimizer and (wanted.load_optim or start.has_begun)
    was, now = manifest.settings.get("optim", {}).get("optimizer", "adamw"), run.optim.optimizer
    if optimizer and was != now:
        raise CheckpointError(
            f"{path}: was trained with OPT={was}, and OPT={now} cannot resume from its optimizer state; "
            f"set OPT={was}, or NO_LOAD_OPTIM=1 with another RUN_NAME and LOAD to start with fresh optimizer state"
        )
    if optimizer:
        _check_fixed(run, path, manifest)
    # What was imported is at iteration 0: it never had an optimizer.
    if not manifest.has_optimizer and wanted.load_optim and manifest.iteration:
        other = "" if start.is_own else ", or FINETUNE=1 to start at iteration 0 with its weights"
        raise CheckpointError(
            f"{path}: has no optimizer state: it was saved with NO_SAVE_OPTIM=1; "
            f"set NO_LOAD_OPTIM=1 to resume without{other}"
        )
    return RestorePlan(progress=True, optimizer=optimizer, imported=not (manifest.iteration or manifest.has_optimizer))


def _check_fixed(run: RunConfig, path: Path, manifest: Manifest) -> None:
    """Refuse settings that are others than those that the optimizer's state was made with."""
    before = manifest.settings.get("optim", {})
    for key in OPTIMIZERS[run.optim.optimizer].fixed:
        was, now = before.get(key, getattr(run.optim, key)), getattr(run.optim, key)
        if was != now:
            name = env_name(f"optim.{key}")
            raise CheckpointError(
                f"{path}: the state of OPT={run.optim.optimizer} was made with {name}={was}, this run has "
                f"{now}; set {name}={was}, or NO_LOAD_OPTIM=1 with another RUN_NAME and LOAD to start with "
                "fresh optimizer state"
            )


def check_start(run: RunConfig, own: Path) -> tuple[Start, CheckpointRef, RestorePlan] | None:
    """Return the checkpoint that a run starts from and what it takes of it, None for new weights.

    A damage that only reading every byte shows is found later; the ranks then take an older one.

    Args:
        run: the derived settings.
        own: the folder of the run's checkpoints.

    Raises:
        CheckpointError: there is none where the settings say, all are damaged, or it is of another model.
    """
    start = find_start(run, own)
    if start is None:
        return None
    found = next(start.candidates())
    check_model(found.path, found.manifest, run, is_own=start.is_own)
    return start, found, taken_of(run, start, found.path, found.manifest)


def _listed(words: list[str], last: str = "and") -> str:
    return f" {last} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
