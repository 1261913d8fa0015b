"""From hosts to a command: which starter, and what every rank gets whoever starts it."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from megads.cluster.hosts import this_host
from megads.cluster.machine import count_accelerators, count_cores
from megads.cluster.ranks import in_slurm_step
from megads.config.machine_facts import Facts
from megads.config.schema import RunConfig
from megads.errors import LaunchError
from megads.launch.containers.enclose import choose, enclose
from megads.launch.launchers.address import master_address, master_port, port_is_free
from megads.launch.launchers.agents import AGENTS, DEEPSPEED, DIRECT, LOCAL, TORCHRUN
from megads.launch.launchers.call import Call, Launcher, refuse_long_words
from megads.launch.launchers.cpu_bind import FREE, Binding, cpus_per_host, find_binding
from megads.launch.launchers.other_hosts import FLUX, JSRUN, MPICH, OPENMPI, PALS, SRUN
from megads.launch.launchers.plan import ALWAYS_UNSET, LaunchPlan, stale_variables
from megads.launch.launchers.programs import on_path
from megads.launch.schedulers.allocation import SCHEDULERS, UNKNOWN, Allocation, is_here
from megads.launch.user_ranks.entry import WITH_STORE

LAUNCHERS = {row.name: row for row in (DIRECT, LOCAL, TORCHRUN, OPENMPI, MPICH, PALS, SRUN, FLUX, JSRUN, DEEPSPEED)}
"""Every starter by its name in LAUNCH_WITH."""

ANY_MPI = ("openmpi", "mpich")
"""What reaches other hosts through the scheduler or ssh, best first."""


def plan_launch(
    run: RunConfig,
    allocation: Allocation,
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    facts: Facts = UNKNOWN,
    attempt: int = 0,
    folder: Path | None = None,
    python: str = "",
    extra: Mapping[str, str] | None = None,
    for_torch: bool = False,
) -> LaunchPlan:
    """Return the plan that runs ``command`` as every rank of ``allocation``.

    The launcher is ``launch.launch_with``; see :func:`choose_launcher` for ``auto``. Nothing is
    started or written, except that an mpiexec may be asked for its version.

    Args:
        run: its ``launch`` section is read.
        attempt: 0, 1, ... of the restarts of one launch; each meets on a port of its own.
        folder: for the list of hosts; None: one in the temporary folder, made when the plan is run.
        python: that launchers written in Python (local, torchrun, DeepSpeed) run; "": the first word of
            ``command``, this one where ranks run in a container.
        for_torch: whether each rank gets RANK, LOCAL_RANK and WORLD_SIZE, whatever its launcher sets.

    Raises:
        LaunchError: the launcher is not installed or cannot start these ranks on these
            hosts; no name of the first host resolves; CPU_BIND cannot be read.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"megads-{os.getuid()}-{secrets.token_hex(4)}"
    own = python or (sys.executable if run.launch.container else command[0])
    call = Call(allocation, tuple(command), env, {}, facts, FREE, folder, own)
    chosen = choose(run.launch, facts, env, Path.cwd()) if run.launch.container else None
    of_srun = chosen is not None and chosen.runtime.of_srun and run.launch.launch_with == "auto"
    row, outer = _rows("srun" if of_srun else run.launch.launch_with, call)
    outer.require_job(env)
    facts = _facts_under(row, outer, facts)
    binding = find_binding(run.launch.cpu_bind, facts, allocation.ranks_per_host)
    added = {**rank_env(allocation, env, facts, binding, attempt), **(extra or {})}
    call = replace(call, facts=facts, binding=binding, added=added)
    if for_torch:
        call = replace(call, command=_with_ranks(row, call.command))
    if chosen is not None:
        call = enclose(call, run, row, chosen)
        added = dict(call.added)
    start = row.build(call) if outer is row else AGENTS[row.name](call, outer)
    added |= start.env
    stale = (stale_variables(env, under_srun=outer is SRUN) | {*ALWAYS_UNSET}) - added.keys()
    refuse_long_words(row.name, start.argv, added)
    return LaunchPlan(
        start.argv,
        added,
        tuple(sorted(stale)),
        in_place=row.in_place,
        forwards_signals=outer.forwards_signals,
        files=start.files,
    )


def plan_started(
    allocation: Allocation,
    by: str,
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    facts: Facts = UNKNOWN,
    extra: Mapping[str, str] | None = None,
) -> LaunchPlan:
    """Return what ranks that are there already turn into: ``command``, with what every launcher sets.

    Args:
        env: of rank 0, which calls this.

    Raises:
        LaunchError: as :func:`plan_launch`.
    """
    added = {**rank_env(allocation, env, facts, FREE, 0), **(extra or {})}
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    if (
        not env.get("OMP_NUM_THREADS")
        and "OMP_NUM_THREADS" not in facts.environment
        and 0 < bound < (os.cpu_count() or 1)
    ):
        added["OMP_NUM_THREADS"] = str(bound)  # their launcher has given each of them cores of its own
    for name in ("MEGADS_ATTEMPT", "SLURM_OVERLAP", *(("MASTER_ADDR", "MASTER_PORT") if by in WITH_STORE else ())):
        added.pop(name, None)
    return LaunchPlan(tuple(command), added, in_place=True)


def _rows(wanted: str, call: Call) -> tuple[Launcher, Launcher]:
    """Return the launcher of the ranks, and the one that brings its agents to other hosts: itself where none are."""
    row = LAUNCHERS[choose_launcher(call) if wanted == "auto" else wanted]
    by_agents = row.name in AGENTS and not call.local
    return row, LAUNCHERS[_under_agents(row.name, call)] if by_agents else row


def _with_ranks(row: Launcher, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``command`` with the numbers of ``row`` under the names that torch reads."""
    if row.name in AGENTS:  # these set them
        return command
    numbers = {"RANK": row.rank, "LOCAL_RANK": row.local_rank, "WORLD_SIZE": "MEGADS_NUM_RANKS"}
    exports = " ".join(f'{name}="${source}"' for name, source in numbers.items())
    return ("sh", "-c", f'export {exports}; exec "$@"', "sh", *command)


def choose_launcher(call: Call) -> str:
    """Return the launcher that ``auto`` means.

    The machine's, where it says one, inside its scheduler's jobs. Else for one rank on this
    host the process itself, and for several what comes with the scheduler (srun, Flux,
    jsrun, PALS) when it is on PATH, else ``local``. Other hosts without a launcher of the
    scheduler: an MPI on PATH.

    Raises:
        LaunchError: the ranks belong on other hosts and nothing on PATH reaches them.
    """
    scheduler = call.allocation.scheduler
    if call.facts.starter and (scheduler != "none" or call.facts.scheduler == "none"):
        return call.facts.starter
    if call.local and call.allocation.world_size == 1:
        return "direct"
    own = _first_on_path(SCHEDULERS[scheduler].launchers, call.env)
    if own or call.local:
        return own or ("local" if hasattr(signal, "sigtimedwait") else "torchrun")  # macOS has none
    return _first_on_path(ANY_MPI, call.env) or _nothing_reaches(call, "LAUNCH_WITH=auto")


def _under_agents(name: str, call: Call) -> str:
    """Return the launcher that brings the agent ``name`` to every host."""
    own = SCHEDULERS[call.allocation.scheduler].launchers
    machine = (call.facts.starter,) if call.facts.starter and LAUNCHERS[call.facts.starter].remote else ()
    return _first_on_path((*machine, *own, *ANY_MPI), call.env) or _nothing_reaches(call, f"LAUNCH_WITH={name}")


def _first_on_path(names: Iterable[str], env: Mapping[str, str]) -> str:
    return next((name for name in names if on_path(name, env)), "")


def _nothing_reaches(call: Call, asked: str) -> str:
    scheduler = call.allocation.scheduler
    others = next((host for host in call.allocation.hosts if not is_here(host, call.env)), "")
    names = ", ".join((*SCHEDULERS[scheduler].launchers, *ANY_MPI))
    raise LaunchError(
        f"{asked}: the run is on {others} too, and nothing on PATH starts ranks there; looked for {names}; "
        "load the module of one of them, or use this host alone (NHOSTS=1 where it is the first)"
    )


def _facts_under(row: Launcher, outer: Launcher, facts: Facts) -> Facts:
    """Return the machine's facts as they hold for ranks of ``row`` that ``outer`` brings to every host.

    Options of another launcher than the machine's are skipped. Under an agent per host, ranks take
    devices by number: what gives each task of the launcher a device of its own would give all ranks
    of a host the same one.
    """
    known: dict[str, tuple[str, ...]] = {}
    if row is not outer or row.name in AGENTS:
        known = {"starter_args": facts.agent_args or facts.starter_args, "cores": facts.agent_cores or facts.cores}
    if facts.starter and facts.starter != outer.name:
        known["starter_args"] = ()
    return facts.model_copy(update=known)


def rank_env(
    allocation: Allocation, env: Mapping[str, str], facts: Facts, binding: Binding, attempt: int
) -> dict[str, str]:
    """Return what every launcher sets for the ranks.

    Raises:
        LaunchError: no name of the first host resolves, or no port is free.
    """
    first_here = is_here(allocation.hosts[0], env)
    job = allocation.job_id or str(os.getuid())
    further = SCHEDULERS[allocation.scheduler].addresses
    port = master_port(job, this_launch(), attempt, is_free=port_is_free if first_here else None)
    added = {name: value for name, value in facts.environment.items() if not env.get(name)}
    added |= {
        "MASTER_ADDR": master_address(allocation.hosts, facts, further=lambda host: further(host, env)),
        "MASTER_PORT": str(port),
        "MEGADS_NUM_RANKS": str(allocation.world_size),
        "MEGADS_ATTEMPT": str(attempt),
        "PYTHONUNBUFFERED": "1",
    }
    if not env.get("OMP_NUM_THREADS") and "OMP_NUM_THREADS" not in added:
        cores = binding.smallest() or (cpus_per_host(env) or count_cores()) // allocation.ranks_per_host
        added["OMP_NUM_THREADS"] = str(max(1, cores))
    if not env.get("DS_ACCELERATOR") and facts.device in ("", "cpu") and not count_accelerators(env):
        added["DS_ACCELERATOR"] = "cpu"
    if in_slurm_step(env):
        # The step that this process is in holds the CPUs; one inside it, also one that an
        # mpiexec makes for its daemons, would wait forever.
        added["SLURM_OVERLAP"] = "1"
    if path := _python_path(env.get("PYTHONPATH", "")):
        added["PYTHONPATH"] = path
    return added


def this_launch() -> str:
    """Return what tells this launch from others of the same job, which may run at the same time."""
    return f"{this_host()} {os.getpid()}"


def _python_path(given: str) -> str:
    """Return a PYTHONPATH with which ranks import this megads, or "" when they do so anyway."""
    root = Path(__file__).resolve().parents[3]
    entries = [entry for entry in given.split(os.pathsep) if entry]
    if str(root) in entries or root.name in ("site-packages", "dist-packages"):
        return ""
    return os.pathsep.join([str(root), *entries])
