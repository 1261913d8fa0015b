"""Who may write in a run folder, and in its checkpoints: one job at a time.

A lock holds where the file system has locks, and ends with its process. A lease (:mod:`megads.storage.lease`) holds
everywhere, and names its holder. The launcher keeps both; ranks get the token of the lease, and rank 0 renews it too,
so that a folder stays held when the launcher was killed and its ranks live on.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from megads.checkpoint.resume.compatibility import checkpoint_folder
from megads.config.run_files import HEARTBEAT, METRICS, OUTCOME
from megads.config.schema import RunConfig
from megads.errors import LaunchError, MegadsError
from megads.launch.supervise.watch import say
from megads.monitor.run_state.outcome import find_outcome, read_heartbeat
from megads.storage.file_lock import FileLock, take_lock
from megads.storage.lease import Holder, LeaseLost, holder_of, stays_the_same, take, this_process
from megads.storage.open_file import write_cure
from megads.text.units import clock, steady_clock

ALIVE_S = 60.0  # since the last heartbeat
BEATS_S = 3.0  # in which a run that lives writes another one
DYING_S = 15.0
WAITS_S = 5.0  # between two looks at a folder that another job holds
LEFT_S = 600.0  # of the allocation: with less it is not worth waiting any longer


class InUse(LaunchError):
    """Another run holds the folder."""


@contextmanager
def claim(folder: Path, job: str = "") -> Iterator[str]:
    """Make ``folder`` and hold it for this run; two runs in one folder would mix their checkpoints.

    The lock goes with the process, also through ``exec`` and when it is killed; the lease is over soon after. When the
    run is refused after all, a folder made here is removed again. One in which ranks have begun stays: a restart that
    fails hours later must not take its checkpoints.

    Args:
        job: the scheduler's id of this job.

    Yields:
        The token of the lease, for rank 0.

    Raises:
        InUse: another run holds it.
        LaunchError: the folder cannot be written.
    """
    missing = [each for each in (folder, *folder.parents) if not os.path.exists(each)]
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            token = stack.enter_context(_held(folder, this_process(job)))
        except OSError as error:
            _remove_new(folder, missing)
            cure = write_cure(error, "set RUN_DIR to a folder you can write")
            raise LaunchError(f"run folder {folder}: {error.strerror}; {cure}") from None
        if not token:
            raise InUse(
                f"run folder {folder}: another run is using it{_who(folder)}; `megads stop {folder}` ends that one, "
                "IF_IN_USE=wait resumes when it has ended, RUN_NAME starts a new one"
            )
        try:
            yield token
        except MegadsError:
            if not _has_begun(folder):
                _remove_new(folder, missing)
            raise


@contextmanager
def claim_checkpoints(run: RunConfig, folder: Path, job: str = "", token: str = "") -> Iterator[Path]:
    """Make the folder of the run's checkpoints, before hours of training find that it cannot be made, and yield it.

    One outside of the run folder is held by itself, with a lease of the same ``token``.

    Raises:
        InUse: another run holds it.
        LaunchError: it cannot be made or written.
    """
    path = checkpoint_folder(run, folder)
    with ExitStack() as stack:
        is_held, cure = True, "set CKPT_DIR to a folder you can write"
        try:
            path.mkdir(parents=True, exist_ok=True)
            reason = "" if os.access(path, os.W_OK | os.X_OK) else "it cannot be written"
            if run.checkpoint.dir and not reason:
                is_held = bool(stack.enter_context(_held(path, this_process(job), token)))
        except OSError as error:
            reason, cure = str(error.strerror), write_cure(error, cure)
        if reason:
            raise LaunchError(f"checkpoints in {path}: {reason}; {cure}")
        if not is_held:
            raise InUse(
                f"checkpoints in {path}: another run is using the folder{_who(path)}; set CKPT_DIR to another one"
            )
        yield path


@contextmanager
def claim_all(run: RunConfig, folder: Path, job: str = "") -> Iterator[tuple[str, Path]]:
    """Hold the run folder and its checkpoints; yield the token of both, and the folder of the checkpoints.

    Raises:
        LaunchError: as :func:`claim` and :func:`claim_checkpoints`.
    """
    with claim(folder, job) as token, claim_checkpoints(run, folder, job, token) as checkpoints:
        yield token, checkpoints


def wait_for(folder: Path, run: RunConfig, refused: InUse, ends: float) -> None:
    """Wait until nobody holds ``folder``, if the settings of ``run`` say so.

    ``ends`` is the end of this allocation in unix seconds, 0: unknown.

    Raises:
        InUse: they do not, or too little of the allocation is left.
    """
    if run.launch.in_use == "refuse":
        raise refused
    now = steady_clock()
    say(f"{str(refused).partition(';')[0]}; waiting until it has ended (IF_IN_USE=wait)")
    while not is_free(folder):
        if ends and now() + LEFT_S >= ends:
            raise InUse(
                f"{str(refused).partition(';')[0]}, and this allocation ends at {clock(ends, now())}; submit this job "
                "again, to start behind that one"
            )
        time.sleep(WAITS_S)


def is_free(folder: Path) -> bool:
    """Return whether nobody holds ``folder``; takes up to half a minute where a host may have crashed."""
    try:
        with _held(folder, None) as token:
            return bool(token)
    except OSError:
        return False


@contextmanager
def _held(folder: Path, me: Holder | None, token: str = "") -> Iterator[str]:
    """Hold the lock and the lease of ``folder`` for a block; yield the lease's token, empty: another one holds it.

    ``me`` None: only look.
    """
    lock = _lock(folder)
    if lock is None:
        yield ""
        return
    with lock:
        before = holder_of(folder)
        if _is_alive(folder, before):
            yield ""
            return
        if me is None:
            yield "free"
            return
        if token:
            me = Holder(**{**vars(me), "token": token})
        lease = take(folder, me, before)
        if lease is None:
            yield ""
            return
        try:
            with lease.kept(_on_loss):
                yield lease.holder.token
        finally:
            lease.release()


def _on_loss(error: LeaseLost) -> None:
    """Ask this run to stop: its ranks save nothing any more, as another run has the folder."""
    say(f"{error.holder.text()} has taken the run folder, which was not renewed in time; this run stops")
    os.kill(os.getpid(), signal.SIGTERM)


def _lock(folder: Path) -> FileLock | None:
    """Return the lock of ``folder``, which programs started with ``exec`` keep; None when another process holds it."""
    lock = take_lock(folder / "lock")
    if lock:
        os.set_inheritable(lock.handle, True)
    return lock


def _is_alive(folder: Path, holder: Holder | None) -> bool:
    """Return whether the last holder of ``folder`` still holds it, although its lock is not seen."""
    if holder is None or holder.is_over:
        return _stays_alive(folder)
    if holder.is_here():
        # Ranks whose launcher was killed may live on.
        return holder.runs() or _stays_alive(folder)
    say(f"{folder} is held by {holder.text()}; waiting up to {holder.expires_s:g} s for a sign that it is alive")
    return not stays_the_same(folder, holder, holder.expires_s) or _stays_alive(folder)


def _who(folder: Path) -> str:
    """Return who holds ``folder``, as `` (job 17 of ann on nid0042, process 911, for 2h03m)``; empty: unknown."""
    with suppress(OSError):
        holder = holder_of(folder)
        if holder is not None and not holder.is_over:
            return f" ({holder.text()})"
        beat = read_heartbeat(folder)
        if beat is not None and is_beating(folder):
            return f" (on {beat.host}, process {beat.pid})"
    return ""


def _has_begun(folder: Path) -> bool:
    """Return whether ranks have written something in ``folder``."""
    own = (folder / name for name in (HEARTBEAT, METRICS, OUTCOME))
    return any(map(os.path.lexists, own)) or any((folder / "checkpoints").glob("iter_*"))


def _remove_new(folder: Path, made: list[Path]) -> None:
    """Remove ``folder`` with what is in it if it is one of ``made``, and the parents made for it."""
    if folder in made:
        shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        for each in made[1:]:
            each.rmdir()


def _stays_alive(folder: Path) -> bool:
    """Return whether a run is writing heartbeats although its lock is not seen, and continues doing so.

    Locks of some file systems hold on one host only; and ranks whose launcher was killed
    may take some seconds to end.
    """
    until = time.monotonic() + DYING_S
    while is_beating(folder):
        before = read_heartbeat(folder)
        time.sleep(BEATS_S)
        if read_heartbeat(folder) == before:
            return False
        if time.monotonic() > until:
            return True
    return False


def is_beating(folder: Path) -> bool:
    """Return whether rank 0 of the run in ``folder`` wrote its heartbeat a moment ago, by the file system's clock."""
    try:
        os.utime(folder / "lock")
        now = (folder / "lock").stat().st_mtime
        return now - (folder / HEARTBEAT).stat().st_mtime < ALIVE_S and find_outcome(folder) is None
    except OSError:
        return False
