"""Ranks that the user started: rank 0 prepares the run, and every rank becomes a worker of it.

``mpiexec -n 4 megads train`` has nobody to launch. Every process knows its rank; rank 0 decides
everything as the launcher does, sends the others what to run, and all of them replace
themselves with ``megads worker``. Exit codes are real: 2 on every rank for a wrong setting, and
afterwards each rank's own, of which rank 0's is the run's.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from megads.cluster.hosts import this_host
from megads.cluster.ranks import RankInfo, find_ranks, rank_variables
from megads.errors import LaunchError, MegadsError
from megads.launch.launchers.plan import OF_RANKS
from megads.launch.preflight.process_limits import raise_open_files
from megads.launch.supervise.processes import print_line
from megads.launch.user_ranks.meeting import Lead, MeetingPoint, launch_key, starting_process, wait_for_message

if TYPE_CHECKING:
    from megads.launch.launchers.plan import LaunchPlan

WITH_STORE = ("torchrun", "DeepSpeed")
"""Launchers that say where ranks meet; torchrun listens there itself."""


@dataclass(frozen=True)
class Started:
    """Ranks that are there already."""

    by: str
    hosts: tuple[str, ...]  # of every rank


Prepare: TypeAlias = "Callable[[Started, Callable[[LaunchPlan], int]], int]"
"""Decides everything, then calls its second argument with what every rank is to run, or returns an exit code."""


def started_rank(env: Mapping[str, str]) -> RankInfo | None:
    """Return which of several ranks this process is; None for a process that is to start ranks itself.

    Raises:
        LaunchError: the launcher's numbers are incomplete or contradict each other.
    """
    if not rank_variables(env):
        return None
    info = find_ranks(_without_ours(env), asks_mpi=False)
    return info if info.world_size > 1 else None


def is_silent(env: Mapping[str, str]) -> bool:
    """Return whether this process is a rank that leaves it to rank 0 to say what is wrong with the command line."""
    try:
        info = started_rank(env)
    except MegadsError:
        return False
    return info is not None and info.rank > 0


def become_rank(info: RankInfo, env: Mapping[str, str], prepare: Prepare) -> NoReturn:
    """Prepare the run as rank 0, or wait for rank 0 to do so; then be a worker of it.

    Args:
        prepare: is called on rank 0 only.
    """
    # Blocked, not ignored: a stop request that comes before the rank listens waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    raise_open_files()
    place = MeetingPoint(info, launch_key(info, env, starting_process), Path.cwd(), note=_say)
    if info.rank == 0:
        sys.exit(_lead(place, env, prepare))
    try:
        message = wait_for_message(place)
    except EOFError:
        _leave(f"[rank {info.rank} host {this_host()}] rank 0 ended before the run began" if info.rank == 1 else "", 1)
    except LaunchError as error:
        _leave(f"[rank {info.rank} host {this_host()}] {error}", 1)
    except KeyboardInterrupt:
        _leave("", 130)
    if "exit" in message:
        # Every rank leaves with the same code, though launchers end what is left when the first one does.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _leave("", int(message["exit"]))
    _become(message["argv"], message["env"], env)


def _lead(place: MeetingPoint, env: Mapping[str, str], prepare: Prepare) -> int:
    from megads.text.secrets import hidden

    lead = None
    code, text = 1, ""
    try:
        lead = Lead(place)
        started = Started(place.info.family, tuple(lead.gather()))

        def begin(plan: LaunchPlan) -> int:
            assert lead is not None
            given = {**plan.env, **plan.private}
            lead.send({"argv": list(plan.argv), "env": given})
            _become(list(plan.argv), given, env)

        code = prepare(started, begin)
    except MegadsError as error:
        code, text = 2, f"megads: {hidden(str(error), env)}"
    except KeyboardInterrupt:
        code, text = 130, "megads: interrupted"
    finally:
        # Before the others leave: a launcher ends what is left when the first one does.
        if text:
            _say(text)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if lead is not None:
            lead.send({"exit": code})
    return code


def _become(argv: list[str], given: Mapping[str, str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process with ``argv``; the launcher's variables stay, for they say which rank it is."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, {**_without_ours(env), **given})
    except OSError as error:
        _leave(f"megads: {argv[0]}: {error.strerror}; it should be an executable program on {this_host()}", 1)


def _without_ours(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in OF_RANKS or name == "MEGADS_NUM_RANKS"}


def _say(text: str) -> None:
    print_line(text if text.startswith(("megads:", "[")) else f"megads: {text}")


def _leave(text: str, code: int) -> NoReturn:
    if text:
        _say(text)
    sys.exit(code)


def even_layout(started: Started) -> tuple[tuple[str, ...], int]:
    """Return the hosts of the ranks, and how many ranks each of them has.

    Raises:
        LaunchError: not all have equally many.
    """
    counts = Counter(started.hosts)
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{host}: {count}" for host, count in counts.most_common(4))
        raise LaunchError(
            f"{started.by} started {len(started.hosts)} ranks unevenly ({each}{', ...' if len(counts) > 4 else ''}); "
            "start the same number on every host"
        )
    return tuple(counts), next(iter(counts.values()))


def what_is_ignored(launch: Any, started: Started) -> list[str]:
    """Return a line for every setting of the launch that has no effect on ranks that are there already."""
    given = {
        "LAUNCH_WITH": launch.launch_with if launch.launch_with != "auto" else "",
        "HOSTFILE": launch.hostfile,
        "CPU_BIND": launch.cpu_bind,
        "MAX_RESTARTS": launch.max_restarts or "",
        "STAGE_ENV": launch.stage_env or "",
    }
    found = [f"{name}={value}" for name, value in given.items() if value]
    if not found:
        return []
    have = "has" if len(found) == 1 else "have"
    return [f"{', '.join(found)} {have} no effect: {started.by} started the ranks; `megads train` alone starts its own"]
