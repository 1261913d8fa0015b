"""Start the runs of an ensemble where there is room, and wait for them. One that fails does not end the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from megads.config.run_folder import STOP, write_whole
from megads.errors import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED, EXIT_WRONG, LaunchError
from megads.launch.ensemble.members import Member
from megads.launch.ensemble.places import Place, Places
from megads.launch.supervise.processes import die_with_parent, send
from megads.launch.supervise.watch import caught, say
from megads.monitor.run_state.attempts import read_attempts
from megads.storage.file_lock import take_lock
from megads.text.plural import plural
from megads.text.units import duration

ENSEMBLE = "ensemble.json"  # in the folder of an ensemble: its runs
LOCK = "ensemble.lock"
POLL_S = 0.2
LONGEST = 300  # characters of a reason
NEEDED_S = 120.0  # an allocation that ends sooner is not worth a start
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@dataclass
class Running:
    """A run that was started."""

    member: Member
    place: Place
    process: subprocess.Popen[bytes]
    since: float  # by the monotonic clock


@dataclass
class Supervisor:
    """Runs the members of an ensemble in ``folder``, each in a folder of its name.

    Attributes:
        command: of ``megads train`` with its words, the same for all.
        env: of this process; each member gets its settings and its place besides.
        ends_at: of the allocation, unix seconds, 0: not known.
        codes: exit code of every run that ended.
        stopping: whether a stop was asked for.
    """

    folder: Path
    members: Sequence[Member]
    places: Places
    command: Sequence[str]
    env: Mapping[str, str]
    ends_at: float = 0.0
    now: Callable[[], float] = time.time
    codes: dict[str, int] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    waiting: list[Member] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    stopping: bool = False

    def run(self) -> int:
        """Run all members and return the exit code of the ensemble.

        Raises:
            LaunchError: a run fits nowhere, the folder cannot be used, or another ensemble uses it.
        """
        self.places.refuse(self.members)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "log").mkdir(exist_ok=True)
            lock = take_lock(self.folder / LOCK)
        except OSError as error:
            raise LaunchError(f"{self.folder}: {error.strerror}; --folder names another place") from None
        if lock is None:
            raise LaunchError(f"{self.folder}: another ensemble is running there; --folder names another place")
        with lock:
            (self.folder / STOP).unlink(missing_ok=True)
            listed = [{"name": each.name, "settings": dict(each.settings)} for each in self.members]
            write_whole(self.folder / ENSEMBLE, json.dumps({"members": listed}, indent=1) + "\n")
            self.waiting = list(self.members)
            with caught(self.signals.append, STOPS):
                try:
                    self._loop()
                finally:
                    self._kill()
        return exit_code([self.codes.get(each.name, EXIT_STOPPED) for each in self.members])

    def _loop(self) -> None:
        while self.running or self.waiting:
            self._collect()
            self._obey()
            if not self.stopping:
                self._start_next()
            elif not self.running:
                return
            time.sleep(POLL_S)

    def _collect(self) -> None:
        """Take note of runs that ended."""
        for each in list(self.running):
            code = each.process.poll()
            if code is None:
                continue
            code = 128 - code if code < 0 else code
            self.running.remove(each)
            self.codes[each.member.name] = code
            self.places.give_back(each.place)
            took = duration(time.monotonic() - each.since)
            left = len(self.running) + len(self.waiting)
            say(f"{each.member.name} {end_text(code)} after {took}{self._reason(each.member, code)}; {left} to go")
            self._exclude(each.member)

    def _reason(self, member: Member, code: int) -> str:
        if code in (EXIT_DONE, EXIT_STOPPED):
            return ""
        # A run that was rejected has no row of this start.
        attempts = [] if code == EXIT_WRONG else read_attempts(self.folder / member.name)
        last = attempts[-1] if attempts and attempts[-1].exit_code else None
        said = (last.verdict or next(iter(last.message.splitlines()[-1:]), "")) if last else ""
        line = said[:LONGEST] or last_line(self.log_of(member))
        return f": {line}" if line else f"; see {self.log_of(member)}"

    def _exclude(self, member: Member) -> None:
        """Leave out hosts that a run excluded; a run that then fits nowhere fails."""
        attempts = read_attempts(self.folder / member.name)
        # A run that recovered without the host excluded it after an earlier start of the same command.
        first = max((number for number, each in enumerate(attempts) if not each.attempt), default=0)
        for host in [host for each in attempts[first:] for host in each.excluded]:
            if self.places.exclude(host):
                say(f"host {host} is excluded for the other runs, as {member.name} did")
        for each in list(self.waiting):
            if problem := self.places.problem(each):
                self.waiting.remove(each)
                self.codes[each.name] = EXIT_FAILED
                say(f"{each.name} is not started: {problem}")

    def _obey(self) -> None:
        """Act on signals and on the stop file: the first stop saves, a second one ends."""
        if not self.stopping and (self.folder / STOP).exists():
            self.signals.append(signal.SIGTERM)
            (self.folder / STOP).unlink(missing_ok=True)
        while self.signals:
            number = self.signals.pop(0)
            if not self.stopping:
                say(f"stopping {plural(len(self.running), 'run')} after a save; {len(self.waiting)} not started")
            self.stopping = True
            for each in self.running:
                send(each.process.pid, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def _start_next(self) -> None:
        """Start every run for which there is room, in their order."""
        if self.waiting and self.ends_at and self.ends_at - self.now() < NEEDED_S:
            say(f"the allocation ends in {duration(max(0.0, self.ends_at - self.now()))}: no further run is started")
            self.stopping = True
            return
        for member in list(self.waiting):
            place = self.places.take(member)
            if place is not None:
                self.waiting.remove(member)
                self._start(member, place)

    def _start(self, member: Member, place: Place) -> None:
        env = {**self.env, **member.settings, "RUN_DIR": str(self.folder / member.name)}
        env.update(self.places.variables(place, env))
        if not self.places.one_host:
            hostfile = self.folder / "log" / f"{member.name}.hosts"
            hostfile.write_text("".join(f"{host}\n" for host in place.hosts))
            env["HOSTFILE"] = str(hostfile)
        with open(self.log_of(member), "ab") as log:
            # A session of its own: Ctrl-C reaches this process only, which asks all runs to save.
            process = subprocess.Popen(
                [*self.command], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=_in_child,
            )  # fmt: skip
        self.running.append(Running(member, place, process, time.monotonic()))
        say(f"{member.name} starts on {where_text(place)}; its output is in {self.log_of(member)}")

    def _kill(self) -> None:
        """End what still runs when this process fails; it has been asked to save before."""
        for each in self.running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(each.process.pid, signal.SIGTERM)
        for each in self.running:
            with suppress(subprocess.TimeoutExpired):
                each.process.wait(10.0)

    def log_of(self, member: Member) -> Path:
        """Return where the output of a run goes."""
        return self.folder / "log" / f"{member.name}.log"


def _in_child() -> None:
    # Nobody is left to start the others, exclude hosts, or tell a stop: a run whose ensemble is killed saves and stops.
    die_with_parent(signal.SIGTERM)


def exit_code(codes: Sequence[int]) -> int:
    """Return the exit code of an ensemble.

    0: all done; 1: one failed, or was refused among others; 2: all were refused; 75: none failed, and one or more
    stopped or were not started.
    """
    failed = [code for code in codes if code not in (EXIT_DONE, EXIT_STOPPED)]
    if failed:
        return EXIT_WRONG if all(code == EXIT_WRONG for code in codes) else EXIT_FAILED
    return EXIT_STOPPED if EXIT_STOPPED in codes else EXIT_DONE


def end_text(code: int) -> str:
    """Return how a run ended, in a word or two."""
    return {EXIT_DONE: "is done", EXIT_STOPPED: "stopped", EXIT_WRONG: "was rejected"}.get(code, f"failed ({code})")


def where_text(place: Place) -> str:
    """Return ``n1, n2`` or ``n1, ranks 0-3``."""
    shown = ", ".join(place.hosts[:3]) + (f" and {len(place.hosts) - 3} more" if len(place.hosts) > 3 else "")
    if not place.slots:
        return shown
    return f"{shown}, {plural(len(place.slots), 'rank')} (slot {', '.join(map(str, place.slots))})"


def last_line(path: Path) -> str:
    """Return the last line that megads wrote about a run, without its beginning; empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next(
        (line.removeprefix("megads: ")[:LONGEST] for line in reversed(lines) if line.startswith("megads: ")), ""
    )


def is_ensemble(folder: Path) -> bool:
    """Return whether ``folder`` is that of an ensemble."""
    return (folder / ENSEMBLE).is_file()


def stop_ensemble(folder: Path) -> None:
    """Ask all runs of an ensemble to save and stop.

    Raises:
        LaunchError: it does not run now.
    """
    with suppress(OSError):
        if lock := take_lock(folder / LOCK):
            lock.release()
            raise LaunchError(f"{folder}: its ensemble is not running; nothing to stop")
    write_whole(folder / STOP, "")
