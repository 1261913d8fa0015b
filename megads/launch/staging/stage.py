"""Stage what ranks import on the hosts of this job: ``megads stage``, and ``STAGE_ENV=1``."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from megads.cluster.hosts import is_this_host, this_host
from megads.config.machine_facts import Facts
from megads.config.schema import RunConfig
from megads.errors import LaunchError
from megads.launch.any_program import remove_files
from megads.launch.launchers.command import plan_launch
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.schedulers.allocation import Allocation
from megads.launch.staging import agent
from megads.launch.staging.archive import CHECKOUT, Archive, make_archive, sources_of
from megads.launch.staging.registry import Host, Registry, Report
from megads.launch.supervise.processes import orphans_adopted
from megads.launch.supervise.run import start_process
from megads.text.plural import plural
from megads.text.units import count, seconds, size

NAMED = 8
"""More hosts than this are counted, not named."""

ARCHIVES = Path(".megads", "stage")
"""Folder of the archives, in the working folder."""


@dataclass(frozen=True)
class Staged:
    """What ranks run."""

    python: str
    python_path: str  # PYTHONPATH, for ranks to import the staged megads
    line: str  # for people

    def variables(self) -> dict[str, str]:
        """Return what ranks get."""
        return {"PYTHONPATH": self.python_path} if self.python_path else {}


def stage_folder(given: str = "") -> str:
    """Return the folder of staged environments on every host: ``given``, else one of this user in /tmp."""
    if given and not os.path.isabs(given):
        raise LaunchError(f"STAGE_DIR={given}: is not an absolute path; use a folder on every host's own disk")
    return given or f"/tmp/megads-{os.getuid()}/stage"


def stage(
    allocation: Allocation,
    facts: Facts,
    run: RunConfig,
    env: Mapping[str, str],
    *,
    python: str,
    root: Path,
    archives: Path = ARCHIVES,
    with_base: bool | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Staged:
    """Stage what ``python`` imports on every host of ``allocation``.

    Raises:
        LaunchError: a host failed or did not report; the line names it.
        DataError: no archive can be made.
    """
    folder = stage_folder(run.launch.stage_dir)
    if any(map(is_this_host, allocation.hosts)):  # before minutes of archiving
        try:
            agent.own_folder(Path(folder))
        except agent.StageError as error:
            refuse_failed(Report([Host(this_host(), problem=str(error))]), len(allocation.hosts))
    archive = make_archive(sources_of(python, root, with_base=with_base), archives.absolute())
    made = "made" if archive.is_new else "found"
    say(f"archive  {size(archive.num_bytes)}, {count(archive.num_files)} files, {made}: {archive.path}")
    report = run_agents(archive, folder, allocation, facts, run, env)
    refuse_failed(report, len(allocation.hosts))
    place = f"{folder}/{archive.name}"
    reused = sum(host.reused for host in report.hosts)
    line = f"{place} on {plural(len(report.hosts), 'host')} in {seconds(report.seconds)}, {reused} had it"
    path = [f"{place}/{CHECKOUT}"] if archive.has_checkout else []
    path += [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry and Path(entry) != root]
    return Staged(f"{place}/{archive.python}" if archive.python else python, os.pathsep.join(path), line)


def remove_staged(allocation: Allocation, facts: Facts, run: RunConfig, env: Mapping[str, str]) -> Report:
    """Remove everything that is staged on the hosts of ``allocation``.

    Raises:
        LaunchError: as :func:`stage`.
    """
    report = run_agents(None, stage_folder(run.launch.stage_dir), allocation, facts, run, env)
    refuse_failed(report, len(allocation.hosts))
    return report


def run_agents(
    archive: Archive | None, folder: str, allocation: Allocation, facts: Facts, run: RunConfig, env: Mapping[str, str]
) -> Report:
    """Start an agent on every host, serve them, and return what they report.

    Raises:
        LaunchError: they cannot be started.
    """
    secret = secrets.token_hex(16)
    registry = Registry(archive, folder, len(allocation.hosts), secret, timeout_s=run.launch.timeout_s)
    families = []

    def start(port: int) -> Callable[[], bool]:
        plan = plan_agents(allocation, facts, run, env, f"{port} {' '.join(addresses())}", secret)
        plan.write_files()
        family = start_process(plan, env)
        families.append((plan, family))
        return lambda: family.starter.poll() is None

    with orphans_adopted():
        try:
            return registry.run(start)
        finally:
            for plan, family in families:
                family.kill()
                remove_files(plan.files)


def plan_agents(
    allocation: Allocation, facts: Facts, run: RunConfig, env: Mapping[str, str], at: str, secret: str
) -> LaunchPlan:
    """Return the plan that starts an agent on every host."""
    each = replace(allocation, ranks_per_host=1, num_ranks=0)
    launch = run.launch.model_copy(
        update={"cpu_bind": "none", "launch_with": _plain(run.launch.launch_with), "container": ""}
    )
    command = [sys.executable, "-I", "-S", agent.__file__]
    extra = {agent.AT: at, agent.SECRET: secret}
    plan = plan_launch(RunConfig(machine=run.machine, launch=launch), each, command, env, facts=facts, extra=extra)
    return plan.hiding(agent.SECRET)


def _plain(name: str) -> str:
    """Return the launcher of agents: those that bring agents of their own to every host are for ranks."""
    return "auto" if name in ("torchrun", "deepspeed", "direct", "local") else name


def addresses() -> list[str]:
    """Return by what other hosts may know this one: its name, and its addresses."""
    found = [this_host()]
    for cards in psutil.net_if_addrs().values():
        found += [card.address for card in cards if card.family == socket.AF_INET and card.address != "127.0.0.1"]
    return [*dict.fromkeys(found), "127.0.0.1"]


def refuse_failed(report: Report, num_hosts: int) -> None:
    """Refuse staging that did not reach every host.

    Raises:
        LaunchError: it names the hosts.
    """
    if report.failed:
        first = report.failed[0]
        names = ", ".join(host.name for host in report.failed[:NAMED]) + (" ..." if len(report.failed) > NAMED else "")
        raise LaunchError(
            f"staging failed on {len(report.failed)} of {plural(num_hosts, 'host')} ({names}): {first.problem}"
        )
    if report.missing:
        raise LaunchError(
            f"staging: {report.missing} of {plural(num_hosts, 'host')} did not report; see the output above, or use "
            "STAGE_ENV=0 to read the environment where it is"
        )
