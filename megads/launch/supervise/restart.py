"""Start a run again from its last checkpoint when ranks failed (``--max-restarts``).

What cannot succeed is not tried again, and what the user asked to stop stays stopped. Each
start is a line of ``<run>/attempts.jsonl``.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from megads.cluster.hosts import this_host
from megads.config.run_folder import OUTCOME, STOP
from megads.errors import EXIT_DONE, EXIT_STOPPED, MegadsError
from megads.launch.launchers.plan import IN_PLACE, LaunchPlan
from megads.launch.nodes.memory import NodeMemory, What, short
from megads.launch.nodes.probe import Health
from megads.launch.preflight.checkpoint_start import Saved
from megads.launch.run_folder import append_to_log
from megads.launch.schedulers.allocation import Allocation
from megads.launch.supervise.end import Ended, remove_end, report_end, with_end
from megads.launch.supervise.progress import is_regression, reason_against
from megads.launch.supervise.record import note_start
from megads.launch.supervise.run import run_once
from megads.launch.supervise.watch import caught, say
from megads.monitor.causes.classify import SUSPECTS
from megads.monitor.run_state.attempts import Attempt, append_attempt
from megads.storage.writing_check import is_writable
from megads.text.plural import plural
from megads.text.units import clock, steady_clock

WAIT_S = 1.0  # before the first restart, twice as long before each further one
LONGEST_WAIT_S = 30.0  # devices and ports of the ranks that died are free again within it
PROBES = 32  # hosts that are tried at the same time
NEEDED_S = 120.0  # an allocation that ends sooner is not worth a start

STORAGE_WAIT_S = 300.0
"""For a file system that failed to take a file again."""
UNREACHABLE = "it cannot be reached"


@dataclass
class Restarts:
    """A run that may be started several times.

    ``plan(allocation, attempt)`` returns what an attempt runs. ``shrink(allocation)`` makes
    the settings of the run fit fewer hosts with the same global batch and returns what
    changed; it raises a MegadsError where that cannot be. ``answers(host)`` is whether a
    host can be reached, ``probe(host, others)`` whether it
    works. ``describe(allocation)`` returns the row of an attempt that has not begun.
    """

    run_dir: Path
    saved: Saved
    env: Mapping[str, str]
    allocation: Allocation
    plan: Callable[[Allocation, int], LaunchPlan]
    shrink: Callable[[Allocation], str]
    max_restarts: int
    ends_at: float = 0.0  # unix seconds, 0: not known
    answers: Callable[[str], bool] = lambda host: can_be_reached(host)
    probe: Callable[[str, tuple[str, ...]], Health] = lambda host, others: Health("unknown", "no check of hosts here")
    memory: NodeMemory = field(default_factory=lambda: NodeMemory(Path(os.devnull), ""))
    describe: Callable[[Allocation], Attempt] = lambda allocation: Attempt(allocation.job_id, hosts=allocation.hosts)
    past: list[Attempt] = field(default_factory=list)
    now: Callable[[], float] = field(default_factory=steady_clock)
    answered: set[str] = field(default_factory=set)
    signals: list[int] = field(default_factory=list)
    forgets: bool = False  # whether the memory of hosts could not be written

    def run(self) -> int:
        """Run to the end and return the exit code of the last attempt.

        75 also when a stop was asked for, or the allocation ended, between two attempts and
        there is a checkpoint.

        Raises:
            LaunchError: when the program of a plan cannot be started.
        """
        remove_end(self.run_dir)
        self.note_who_answers()
        with caught(self.signals.append):
            while True:
                ended = self.once()
                if ended.exit_code in (EXIT_DONE, EXIT_STOPPED):
                    return self.record(ended.exit_code)
                report_end(ended, self.run_dir)
                reason = self.reason_to_end(ended) or self.choose_hosts()
                self.record(ended.exit_code)
                if reason:
                    self.report(f"not restarted: {reason}")
                    return EXIT_STOPPED if self.is_resumable(ended) else ended.exit_code
                self.announce()
                if self.wait():
                    self.report("not restarted: a stop was requested")
                    return EXIT_STOPPED if self.saved.newest() else ended.exit_code

    def once(self) -> Ended:
        """Run one attempt and remember how it went."""
        began, number = self.saved.newest(), len(self.past)
        (self.run_dir / OUTCOME).unlink(missing_ok=True)
        plan = supervised(self.plan(self.allocation, number))
        attempt = note_start(self.run_dir, replace(self.describe(self.allocation), attempt=number, began=began))
        ended = run_once(plan, self.run_dir, self.env)
        attempt = with_end(replace(attempt, began=0), ended, self.run_dir, began)
        # Only ranks find that a block is damaged, and then resume from an older checkpoint than was planned.
        reached = max(attempt.reached, self.saved.since()) or began
        attempt = replace(attempt, reached=reached, began=min(began, self.saved.newest(), reached))
        self.past.append(attempt)
        return ended

    def reason_to_end(self, ended: Ended) -> str:
        """Return why there is no further attempt, or nothing."""
        if ended.aborted_by:
            return f"ended by signal {ended.aborted_by}"
        if ended.stop_asked or self.is_stop_asked():
            return "a stop was requested"
        if reason := reason_against(self.past, self.max_restarts):
            return reason
        if self.past[-1].cause == "filesystem" and (full := self.wait_for_storage()):
            return f"{full} cannot be written"
        now = self.now()
        if self.ends_at and self.ends_at - now < NEEDED_S:
            return f"the allocation ends at {clock(self.ends_at, now)}"
        return ""

    def wait_for_storage(self) -> Path | None:
        """Wait until the folders of the run can be written; return the one that cannot, after a while."""
        until, pause = time.monotonic() + STORAGE_WAIT_S, 0.5
        while True:
            folders = (self.run_dir, self.saved.folder)
            full = next((path for path in folders if path.is_dir() and not is_writable(path)), None)
            if full is None or time.monotonic() >= until or self.is_stop_asked():
                return full
            time.sleep(pause)
            pause = min(2 * pause, 15.0)

    def is_resumable(self, ended: Ended) -> bool:
        """Return whether the same command resumes what was saved, as after a stop request."""
        asked = ended.stop_asked or self.is_stop_asked()
        out_of_time = bool(self.ends_at) and self.ends_at - self.now() < NEEDED_S
        worth = not reason_against(self.past, self.max_restarts + 1)
        return (asked or out_of_time) and worth and not ended.aborted_by and self.saved.newest() > 0

    def choose_hosts(self) -> str:
        """Leave out hosts that are broken, if that can be; return why no hosts are left to run on, or nothing."""
        last = self.past[-1]
        if last.cause not in SUSPECTS:
            return ""
        failed = _named(last.host, self.allocation.hosts)
        # Drivers and schedulers name hosts. That a rank does not answer may be its program: only a check counts then.
        if failed and last.cause == "node" and last.kind != "hang":
            self.remember(failed, "failed", last.verdict)
        # A host that went down takes its ranks with it before one of them can say a word.
        for host in [failed] if failed else self.gone():
            why = self.what_is_wrong_with(host)
            if why and self.allocation.spare:
                self.replace_host(host, why)
            elif why and (reason := self.go_without(host, why)):
                return reason
        return ""

    def what_is_wrong_with(self, host: str) -> str:
        """Return why a suspect is to be left out: only what is shown counts, by a check or by what happened before."""
        last = self.past[-1]
        if not self.allocation.spare and len(self.allocation.hosts) == 1:
            return ""  # there is no other one
        if self.is_gone(host):
            self.remember(host, "broken", UNREACHABLE)
            return UNREACHABLE
        if last.kind == "replica" and last.cause == "node":  # no check of a host sees a bit that flips
            return "its copies of weights are not those of the others"
        if known := self.memory.bad_hosts().get(short(host)):
            return f"it is known for failures ({known.why})"
        others = tuple(other for other in self.allocation.hosts if other != host)
        health = self.probe(host, others or self.allocation.spare)
        if health.state != "unknown":
            self.remember(host, health.state, health.why or last.verdict)
        if health.state == "broken":
            return f"it fails a check ({health.why})"
        if health.state == "healthy":
            self.report(f"host {host} passes a check ({health.why}) and is kept")
        elif last.cause == "node" and self.allocation.spare:
            return f"it was named, and cannot be checked ({health.why})"
        return ""

    def remember(self, host: str, what: What, why: str) -> None:
        """Keep what happened on ``host`` for later jobs; that it cannot be kept is reported once."""
        last = self.past[-1]
        problem = self.memory.note(host, what, job=last.job, cause=last.cause, why=why)
        if problem and not self.forgets:
            self.report(f"{self.memory.path}: {problem}; failures of hosts are not kept for later jobs")
        self.forgets = self.forgets or bool(problem)

    def replace_host(self, failed: str, why: str) -> None:
        """Let a spare host take the place of one that failed."""
        new, *spare = self.allocation.spare
        hosts = tuple(new if host == failed else host for host in self.allocation.hosts)
        self.allocation = replace(self.allocation, hosts=hosts, spare=tuple(spare))
        self.retire(failed, f"{why}; {new} replaces it")

    def go_without(self, failed: str, why: str) -> str:
        """Leave out ``failed`` if the others can run without; return why the run ends if they cannot and it is gone."""
        hosts = tuple(host for host in self.allocation.hosts if host != failed)
        fewer = replace(self.allocation, hosts=hosts, num_ranks=0)
        try:
            changed = self.shrink(fewer)
        except MegadsError as error:
            if why == UNREACHABLE:
                return f"{failed} cannot be reached, and without it: {error}"
            self.report(f"host {failed}: {why}, and is used all the same; without it: {error}")
            return ""
        self.allocation = fewer
        self.retire(failed, f"{why}; resuming on {plural(len(hosts), 'host')}: {changed}")
        return ""

    def retire(self, host: str, what: str) -> None:
        """Note that ``host`` is excluded, and why."""
        last = self.past[-1]
        self.past[-1] = replace(last, excluded=(*last.excluded, host))
        self.report(f"host {host} is excluded after: {last.message}; {what}")

    def note_who_answers(self) -> None:
        """Note whether the one other host answers now: a site may let nobody ask, and then silence says nothing.

        With more hosts, one that answers later shows as much for the others.
        """
        hosts = self.other_hosts()
        if self.max_restarts and len(hosts) == 1:
            self.answered = {host for host in hosts if self.answers(host)}

    def is_gone(self, host: str) -> bool:
        """Return whether ``host`` cannot be reached although another one can, or it could at the start."""
        others = [other for other in self.other_hosts() if other != host][:3]
        if self.answers(host):
            return False
        return host in self.answered or any(self.answers(other) for other in others)

    def gone(self) -> list[str]:
        """Return the hosts that cannot be reached although other ones can, or they could at the start."""
        hosts = self.other_hosts()
        with ThreadPoolExecutor(PROBES) as pool:
            silent = [host for host, answers in zip(hosts, pool.map(self.answers, hosts), strict=True) if not answers]
        return silent if len(silent) < len(hosts) else [host for host in silent if host in self.answered]

    def other_hosts(self) -> list[str]:
        """Return the hosts of the run but this one, which always answers itself."""
        here = _named(this_host(), self.allocation.hosts)
        return [host for host in self.allocation.hosts if host != here]

    def announce(self) -> None:
        """Say that the run starts again, and from where."""
        last, newest = self.past[-1], self.saved.newest()
        origin = f"from iteration {newest}" if newest else "from scratch (no checkpoint)"
        self.report(f"restart {last.attempt + 1} of {self.max_restarts} {origin}")

    def is_stop_asked(self) -> bool:
        """Return whether the user asked for a stop, by a signal or by the stop file."""
        return bool(self.signals) or (self.run_dir / STOP).exists()

    def wait(self) -> bool:
        """Wait before the next attempt; return whether a stop was asked for meanwhile."""
        until = time.monotonic() + min(LONGEST_WAIT_S, WAIT_S * 2 ** (len(self.past) - 1))
        while time.monotonic() < until and not self.is_stop_asked():
            time.sleep(0.05)
        return self.is_stop_asked()

    def record(self, exit_code: int) -> int:
        """Add the last attempt to ``attempts.jsonl`` and return ``exit_code``."""
        last = self.past[-1]
        if exit_code not in (EXIT_DONE, EXIT_STOPPED) and is_regression(self.past):
            verdict = f"two attempts in a row did not get beyond iteration {last.reached}; the last one: {last.verdict}"
            self.past[-1] = replace(last, cause="regression", verdict=verdict)
        append_attempt(self.run_dir, self.past[-1])
        return exit_code

    def report(self, text: str) -> None:
        """Print a line, also in the log of the run."""
        say(text)
        with suppress(MegadsError):  # a full disk
            append_to_log(self.run_dir, f"megads: {text}\n")


def _named(host: str, hosts: Sequence[str]) -> str:
    """Return the host of ``hosts`` that ``host`` names; domains do not count."""
    return next((each for each in hosts if host and each.split(".")[0] == host.split(".")[0]), "")


def supervised(plan: LaunchPlan) -> LaunchPlan:
    """Return ``plan`` for a launcher that stays: no rank takes its place."""
    env = {name: value for name, value in plan.env.items() if name != IN_PLACE}
    return replace(plan, env=env, in_place=False)


def can_be_reached(host: str) -> bool:
    """Return whether ``host`` answers at all: a refused connection is an answer."""
    try:
        socket.create_connection((host, 22), timeout=3.0).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
