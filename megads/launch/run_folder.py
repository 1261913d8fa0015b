"""The run folder: which one a command means, and the stop request; ``claims`` says who may write in it.

A folder that the user named (RUN_DIR, RUN_NAME) is taken as it is. Otherwise the folder is
``runs/<preset>``, and when that run is complete ``runs/<preset>-2`` and so on, so that the
same command resumes what is unfinished and never trains on top of what is finished. Inside
a batch job a complete run is left alone: a chain of jobs must not start over. ``CKPT_STEP``
goes back in a complete run, for without it there is nothing to go back in. ``--fresh`` is an
option and no setting: what resumes or restarts a run must not inherit it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from megads.checkpoint.format.folders import list_checkpoints
from megads.checkpoint.resume.compatibility import checkpoint_folder, meaningful
from megads.checkpoint.resume.start_point import goes_back_to
from megads.config.run_folder import CONFIG, LOG_FILE, STOP, load_config, write_whole
from megads.config.schema import RunConfig
from megads.errors import LaunchError, MegadsError
from megads.launch.claims import is_beating
from megads.monitor.run_state.outcome import read_outcome
from megads.storage.file_lock import take_lock
from megads.storage.open_file import write_cure

RUNS = Path("runs")
BATCH_JOB = ("PBS_JOBID", "SLURM_JOB_ID")
FINDER = "lr_finder"  # in the run folder: where a sweep of the learning rate works


@dataclass(frozen=True)
class Folder:
    """The folder of a run, and whether the run in it has nothing left to do."""

    path: Path
    complete: bool
    note: str = ""
    named: bool = True  # the same command means the same folder

    def run_dir(self, run: RunConfig) -> Path:
        """Return the run's folder, that of a sweep of the learning rate is in it."""
        return self.path.parent if run.lr_finder.enabled else self.path


def choose_folder(run: RunConfig, *, named: bool, in_job: bool, fresh: bool = False) -> Folder:
    """Return the folder that this command means.

    A sweep of the learning rate has a folder of its own in the run's, so that nothing of it
    is taken for the training run of that name.

    Args:
        run: the derived settings; ``run.name`` is set.
        named: whether the user chose ``RUN_DIR``, ``RUN_NAME`` or ``CKPT_DIR``.

    Raises:
        LaunchError: a new run has no folder: the user named one that holds a run, or this batch
            job would start another run whenever it is restarted.
        LaunchError: ``USE_CHECKPOINT_ARGS`` takes a model, this command means another folder than that
            of the plain name, and there is neither a checkpoint in it nor ``LOAD``.
    """
    if fresh and in_job:
        raise LaunchError(
            "--fresh in a batch job would start a new run whenever the job is restarted; set RUN_NAME instead, or use "
            "--submit --fresh outside of the job"
        )
    first = Path(run.dir) if run.dir else RUNS / run.name
    folder = _fresh_folder(run, first, named) if fresh else _training_folder(run, first, named=named, in_job=in_job)
    return replace(folder, path=folder.path / FINDER, complete=False) if run.lr_finder.enabled else folder


def _fresh_folder(run: RunConfig, first: Path, named: bool) -> Folder:
    """Return the next folder without a run: the plain name, then ``-2`` and so on."""
    free = next(path for path in _numbered(first) if not _is_used(path))
    own = checkpoint_folder(run, first)
    if run.checkpoint.dir and _is_used(own):
        raise LaunchError(
            f"--fresh: CKPT_DIR={own} is not empty; use CKPT_DIR={next(p for p in _numbered(own) if not _is_used(p))}"
        )
    if named and free != first:
        use = f"RUN_DIR={free}" if run.dir else f"RUN_NAME={free.name}"
        raise LaunchError(f"--fresh: {first} is not empty; use {use}")
    if free == first:
        return Folder(free, complete=False, named=named)
    note = f"{first} is not empty; this run is {free} (RUN_DIR={free} resumes it)"
    _refuse_without_model(run, free, note)
    return Folder(free, complete=False, note=note, named=False)


def _numbered(first: Path) -> Iterator[Path]:
    yield first
    yield from (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))


def _is_used(path: Path) -> bool:
    return os.path.lexists(path) and (not os.path.isdir(path) or any(path.iterdir()))


def _training_folder(run: RunConfig, first: Path, *, named: bool, in_job: bool) -> Folder:
    if run.train.evaluate_only:
        return _evaluated_folder(run, first, fixed=named or in_job)
    if named or in_job:
        goes_back = 0 < goes_back_to(run, checkpoint_folder(run, first)) < run.train.train_iters
        return Folder(first, iterations_done(first) >= run.train.train_iters and not goes_back)
    finished, others = [], []
    for path in _numbered(first):
        if 0 < run.train.train_iters <= iterations_done(path):
            finished.append(path)
        elif _is_of_other_machine(path, run):
            others.append(path)
        else:
            break
    note, complete = "", False
    if finished:
        note = f"{finished[-1]} is complete; this run is {path} (RUN_DIR={finished[-1]} names the old one)"
    elif others:
        note = f"{others[-1]} has another machine's model; this run is {path}"
    if finished and run.checkpoint.step and not run.checkpoint.load and not list_checkpoints(path / "checkpoints"):
        path = finished[-1]
        note = f"this run is {path}, the newest of its name" if path != first else ""
        complete = run.checkpoint.step >= run.train.train_iters
    _refuse_without_model(run, path, note)
    return Folder(path, complete, note, named=False)


def _evaluated_folder(run: RunConfig, first: Path, *, fixed: bool) -> Folder:
    """Return the folder of a run that evaluates only; it is never complete.

    Without ``LOAD`` the newest run of that name that has a checkpoint; with it a folder without a run, since a run
    starts from its own checkpoints where it has any.
    """
    if fixed:
        return Folder(first, complete=False)
    if run.checkpoint.load:
        path = next(path for path in _numbered(first) if not _is_used(path))
        note = f"{first} is not empty; this evaluation is {path}"
    else:
        there = list(itertools.takewhile(os.path.isdir, _numbered(first)))
        path = next((path for path in reversed(there) if list_checkpoints(path / "checkpoints")), first)
        note = f"evaluates {path}, the newest run of its name"
    return Folder(path, complete=False, note=note if path != first else "", named=False)


def _refuse_without_model(run: RunConfig, path: Path, note: str) -> None:
    wanted = run.checkpoint
    if note and wanted.use_args and not wanted.load and not list_checkpoints(path / "checkpoints"):
        raise LaunchError(f"USE_CHECKPOINT_ARGS=1 needs a checkpoint, but {note}; set LOAD=RUN, RUN_NAME or RUN_DIR")


def _is_of_other_machine(folder: Path, run: RunConfig) -> bool:
    """Return whether ``folder`` holds a run that another machine's file gave another model.

    On a host without accelerators a preset has a small width; a try there does not stand in the way of
    the preset's own.
    """
    if not (folder / CONFIG).is_file() or not list_checkpoints(folder / "checkpoints"):
        return False
    try:
        other = load_config(folder / CONFIG)
    except MegadsError:
        return False  # what is wrong with it is said where it is used
    theirs, ours = other.model.model_dump(), run.model.model_dump()
    return other.machine != run.machine and any(theirs[name] != ours[name] for name in meaningful(theirs))


def iterations_done(folder: Path) -> int:
    """Return the iteration at which the run in ``folder`` ended, 0 if it never ended."""
    outcome = read_outcome(folder)
    return outcome.iteration if outcome and outcome.exit_code == 0 else 0


def append_to_log(folder: Path, text: str) -> None:
    """Add ``text`` to the run's log file.

    Raises:
        LaunchError: it cannot be written.
    """
    path = folder / LOG_FILE
    try:
        path.parent.mkdir(exist_ok=True)
        with open(path, "a", encoding="utf8") as file:
            file.write(text)
    except OSError as error:
        raise LaunchError(f"{path}: {error.strerror}; {write_cure(error, 'use another RUN_DIR')}") from None


def request_stop(folder: Path) -> None:
    """Ask the run in ``folder`` to save and stop at its next step.

    Raises:
        LaunchError: there is no run in the folder, or it does not run now.
    """
    if not (folder / CONFIG).is_file():
        raise LaunchError(f"{folder}: no run here (no config.yaml); pass the folder that the run printed as 'folder'")
    with suppress(OSError):  # a folder of somebody else
        if lock := take_lock(folder / "lock"):
            lock.release()
            # Where locks do not exist, or hold on one host only, the heartbeat tells.
            if not is_beating(folder):
                raise LaunchError(f"{folder}: its run is not running; nothing to stop")
    write_whole(folder / STOP, "")
