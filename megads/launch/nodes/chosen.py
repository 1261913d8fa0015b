"""Which hosts of a job are used: those that are known for failures last, and which ones a job asks not to get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from megads.config.schema import RunConfig
from megads.launch.nodes.memory import PLACE, NodeMemory, NodeRecord, short
from megads.launch.schedulers.allocation import Allocation, job_notes
from megads.text.plural import plural


def without_bad(allocation: Allocation, run: RunConfig, env: Mapping[str, str]) -> Allocation:
    """Return ``allocation`` with spare hosts in the place of those that are known for failures."""
    if not allocation.spare:
        return allocation
    bad = NodeMemory.of(run.machine, env).bad_hosts()
    hosts, spare = list(allocation.hosts), list(allocation.spare)
    good = [host for host in spare if short(host) not in bad]
    for place, host in enumerate(hosts):
        if short(host) in bad and good:
            hosts[place] = good.pop(0)
            spare[spare.index(hosts[place])] = host
    return replace(allocation, hosts=tuple(hosts), spare=tuple(spare))


def host_notes(run: RunConfig, allocation: Allocation, env: Mapping[str, str], folder: Path) -> list[str]:
    """Return lines about the job of a run in ``folder``, and for every host in it that is known for failures."""
    memory = NodeMemory.of(run.machine, env)
    bad = memory.bad_hosts()
    notes = [*job_notes(run, allocation, env, folder), *_memory_notes(memory, run, allocation, env)]
    for host in (*allocation.hosts, *allocation.spare):
        if record := bad.get(short(host)):
            used = "is used, as there is no spare host" if host in allocation.hosts else "is left unused"
            notes.append(f"host {host} {used}: {record.why}; megads nodes --forget {record.host} once it is repaired")
    return notes


def _memory_notes(memory: NodeMemory, run: RunConfig, allocation: Allocation, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a line if what happens on hosts will be forgotten, where that matters or the user named the file."""
    given = f"{PLACE}=" if env.get(PLACE) else ""
    matters = run.launch.max_restarts and len(allocation.hosts) + len(allocation.spare) > 1
    if (given or matters) and (problem := memory.problem()):
        cure = "name another file" if given else f"{PLACE} names another file"
        yield f"{given}{memory.path}: {problem}; failures of hosts are not kept for later jobs; {cure}"


def exclusion_note(bad: Mapping[str, NodeRecord], option: str) -> str:
    """Return what a submission does about hosts that are known for failures; "" where there are none.

    Args:
        option: with which the scheduler leaves them out; "": it has none.
    """
    if not bad:
        return ""
    names = ",".join(sorted(bad))
    if option:
        return f"excluded {plural(len(bad), 'host')} known for failures: {option}{names}"
    return (
        f"{plural(len(bad), 'host')} known for failures ({names}): this scheduler takes no list of hosts to exclude; "
        "ask for one host more than NHOSTS, and the run leaves them unused"
    )
