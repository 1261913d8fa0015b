"""Start any program as ranks: ``megads launch -- CMD``."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from megads.cluster.machine import count_accelerators, machine_name
from megads.cluster.ranks import RankInfo
from megads.config.machine_facts import Facts
from megads.config.schema import LaunchConfig, RunConfig
from megads.config.sources.presets import read_machine
from megads.config.sources.resolve import resolve, settings
from megads.config.tree import names_of
from megads.errors import LaunchError
from megads.launch.containers.enclose import check_container
from megads.launch.launchers.command import plan_launch, plan_started
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.schedulers.allocation import Allocation, find_allocation, find_hosts, is_here, ranks_per_host
from megads.launch.supervise.processes import FORWARDED, Family, orphans_adopted, send
from megads.launch.supervise.run import become_process, start_process
from megads.launch.supervise.watch import caught
from megads.launch.user_ranks.entry import Started, become_rank
from megads.text.plural import plural


def plan_program(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    hostname: str,
    root: Path,
    ranks: int = 0,
    overrides: Mapping[str, str] | None = None,
) -> LaunchPlan:
    """Return the plan that runs ``command`` as every rank.

    Besides what the launcher sets, each finds RANK, LOCAL_RANK and WORLD_SIZE, so that
    ``torch.distributed`` starts from its environment under every launcher.

    Args:
        env: of the launch; of settings only those of ``launch`` and MACHINE are read.
        ranks: in all; 0: as many as fit.

    Raises:
        MegadsError: a setting is wrong, the program is not there, or the ranks cannot be started.
    """
    run, facts = launch_settings(env, hostname, root, dict(overrides or {}))
    check_container(run.launch, env)
    allocation = allocate_ranks(run.launch, env, facts, ranks)
    if not run.launch.container and any(is_here(host, env) for host in allocation.hosts):
        _require_program(command[0], env)
    only_launch = RunConfig(machine=run.machine, launch=run.launch)
    # DeepSpeed's agents read the list of hosts on every host; only this folder may be shared.
    shared = Path.cwd() / f".megads-launch-{secrets.token_hex(4)}"
    folder = shared if run.launch.launch_with == "deepspeed" and len(allocation.hosts) > 1 else None
    return plan_launch(
        only_launch, allocation, command, env, facts=facts, folder=folder, python=sys.executable, for_torch=True
    )


def count_ranks(env: Mapping[str, str], *, hostname: str, root: Path) -> int:
    """Return how many ranks :func:`plan_program` starts where nobody says how many.

    Raises:
        MegadsError: as :func:`plan_program`.
    """
    run, facts = launch_settings(env, hostname, root, {})
    return allocate_ranks(run.launch, env, facts, 0).world_size


def become_program(
    info: RankInfo, command: Sequence[str], env: Mapping[str, str], *, hostname: str, root: Path
) -> NoReturn:
    """Become ``command``, as one of the ranks that the user started with a launcher that names no meeting point.

    Afterwards every rank has MASTER_ADDR and MASTER_PORT, and the machine's variables where the user sets none.
    """

    def prepare(started: Started, begin: Callable[[LaunchPlan], int]) -> int:
        run, facts = launch_settings(env, hostname, root, {})
        check_container(run.launch, env, started=started.by)
        allocation = find_allocation(run, env, facts, started)
        return begin(plan_started(allocation, started.by, command, env, facts=facts))

    become_rank(info, env, prepare)


def launch_settings(
    env: Mapping[str, str], hostname: str, root: Path, given: Mapping[str, str]
) -> tuple[RunConfig, Facts]:
    """Return the settings of ``launch`` that ``env`` and ``given`` ask for, with the machine, and its facts."""
    machine = given.get("machine") or machine_name(hostname, env, root)
    known = {name for setting, _ in settings() if setting.startswith("launch.") for name in names_of(setting)}
    asked = {name: value for name, value in env.items() if name in known}
    run = resolve(None, env=asked, overrides=given, machine=machine, root=root).run
    return run, read_machine(machine, root).facts


def _require_program(name: str, env: Mapping[str, str]) -> None:
    """Refuse what cannot be run on this host: some launchers print pages for it.

    Raises:
        LaunchError: it is not on PATH, or no executable file.
    """
    if shutil.which(name, path=env.get("PATH", os.defpath)):
        return
    if os.path.isfile(name):
        raise LaunchError(f"{name}: not an executable program; name its interpreter, e.g. -- python {name}")
    raise LaunchError(f"{name or repr(name)}: no such program on PATH; pass one, e.g. -- python script.py")


def allocate_ranks(launch: LaunchConfig, env: Mapping[str, str], facts: Facts, ranks: int) -> Allocation:
    """Return the hosts for ``ranks`` ranks; the last host may take fewer than the others.

    Hosts are filled one after the other where it is known what one takes (``ranks_per_host``,
    the machine's facts, accelerators), else the ranks are spread over all of them.

    Raises:
        LaunchError: there are more ranks than the hosts take.
    """
    scheduler, job_id, hosts, spare = find_hosts(launch, env)
    here = any(is_here(host, env) for host in hosts)
    each = launch.ranks_per_host or ranks_per_host(launch, facts, count_accelerators(env), here=here)
    each = each or -(-max(ranks, 1) // len(hosts))
    if ranks > each * len(hosts):
        raise LaunchError(
            f"-n {ranks}: {plural(len(hosts), 'host')} of {plural(each, 'rank')} each take {each * len(hosts)}; "
            "use fewer, more hosts, or more on each (--ppn, NGPU_PER_HOST)"
        )
    if not ranks:
        return Allocation(scheduler.name, hosts, each, job_id, spare)
    each = min(each, ranks)
    used = -(-ranks // each)
    uneven = ranks if ranks != used * each else 0
    return Allocation(scheduler.name, hosts[:used], each, job_id, (*hosts[used:], *spare), uneven)


def run_program(plan: LaunchPlan, env: Mapping[str, str]) -> int:
    """Run ``plan`` and return its exit code: the launcher's own, 128 + n after signal n.

    SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are handed on; a second SIGINT or SIGTERM
    kills what is left on this host. Output goes where this process's goes, untouched.

    Raises:
        LaunchError: the program cannot be started, or a file not be written.
    """
    plan.write_files()
    if plan.in_place:
        become_process(plan, env)
    # A terminal has one foreground session, which stays this process's.
    stdin = subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None
    with orphans_adopted():
        family = start_process(plan, env, stdin=stdin)
        try:
            with _forwarded(family, plan):
                family.starter.wait()
        finally:
            family.kill()
            remove_files(plan.files)
    code = family.starter.returncode
    return 128 - code if code < 0 else code


def remove_files(files: Iterable[str]) -> None:
    """Remove the plan's files and the folder that was made for them."""
    with contextlib.suppress(OSError):
        for path in files:
            os.unlink(path)
        for folder in {Path(path).parent for path in files}:
            folder.rmdir()


@contextlib.contextmanager
def _forwarded(family: Family, plan: LaunchPlan) -> Iterator[None]:
    """Hand signals on to the ranks for the time of the block."""
    ends: list[int] = []

    def hand_on(number: int) -> None:
        if number in (signal.SIGINT, signal.SIGTERM):
            ends.append(number)
        if len(ends) > 1:
            family.send(signal.SIGKILL)
        elif number in (signal.SIGUSR1, signal.SIGUSR2) and not plan.forwards_signals:
            for pid in family.members():
                if pid != family.starter.pid:
                    send(pid, number)
        else:
            send(family.starter.pid, number)

    with caught(hand_on, FORWARDED):
        yield
