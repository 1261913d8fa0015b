"""What a job script says, and handing it to PBS or SLURM."""

from __future__ import annotations

import math
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from megads.config.machine_facts import Facts, Queue, SubmitFacts
from megads.config.sources.presets import read_machine
from megads.errors import ConfigError, LaunchError

PROGRAMS = {"slurm": "sbatch", "pbs": "qsub"}
_ACCOUNTS = {"slurm": "SBATCH_ACCOUNT", "pbs": "PBS_ACCOUNT"}
"""Variables with which users give an account once."""

_WORD = re.compile(r"[\w.:@%+=,/~\[\]&|*!()-]+", re.ASCII)
"""What may stand in a directive, which no shell reads: gpu&hbm80g is a constraint of SLURM's."""


@dataclass(frozen=True)
class Request:
    """What a job asks of its scheduler."""

    nodes: int
    seconds: float  # of wall time
    account: str = ""
    queue: str = ""  # empty: the first of the machine that takes the job
    chunk: str = ""  # PBS; empty: the machine's
    options: tuple[str, ...] = ()  # more words of qsub or sbatch
    ranks_per_host: int = 0
    gpus: bool = True  # whether the job asks for the machine's
    jobs: int = 1  # how many of a chain wait or run at the same time
    name: str = "megads"
    output: str = ""  # folder of what the job prints; empty: the scheduler's own


@dataclass(frozen=True)
class Place:
    """Where jobs go: a scheduler, and what the machine's jobs say."""

    machine: str
    scheduler: str  # "pbs" or "slurm"
    submit: SubmitFacts
    facts: Facts = field(default_factory=Facts)


def find_place(machine: str, root: Path, env: Mapping[str, str]) -> Place:
    """Return where jobs of ``machine`` go; for a machine without scheduler by which of sbatch and qsub is on PATH.

    Raises:
        LaunchError: neither is, or the machine's scheduler takes no jobs from here.
    """
    facts = read_machine(machine, root).facts
    if facts.scheduler in PROGRAMS:
        return Place(machine, facts.scheduler, facts.submit, facts)
    scheduler = scheduler_on_path(env)
    if facts.scheduler != "none" or not scheduler:
        known = "neither sbatch nor qsub is on PATH" if facts.scheduler == "none" else f"it has {facts.scheduler}"
        raise LaunchError(
            f"machine {machine}: {known}, and jobs are submitted to PBS and SLURM only; go to a login node of the "
            "cluster, or name its machine with MACHINE for --dry-run"
        )
    return Place(machine, scheduler, read_machine(scheduler, root).facts.submit, facts)


def scheduler_on_path(env: Mapping[str, str]) -> str:
    """Return the scheduler whose program is on PATH, or "".

    SLURM's wrappers for users of PBS have a qsub too, so where both programs are, qsub counts
    when it says that it is PBS.
    """
    found = [name for name, program in PROGRAMS.items() if shutil.which(program, path=env.get("PATH", ""))]
    if len(found) < 2:
        return "".join(found)
    try:
        said = subprocess.run(["qsub", "--version"], env=dict(env), capture_output=True, text=True, timeout=15)
    except (OSError, subprocess.TimeoutExpired):
        return "slurm"
    return "pbs" if "pbs_version" in said.stdout + said.stderr else "slurm"


def refuse_host_file(path: str) -> None:
    """Refuse a list of hosts that was there before the job: its hosts are known when it starts.

    Raises:
        LaunchError: ``path`` is one.
    """
    if path:
        raise LaunchError(
            f"HOSTFILE={path}: the scheduler chooses the hosts of a job; unset HOSTFILE and say how many with --nodes"
        )


def job_text(request: Request, place: Place, body: Sequence[str]) -> str:
    """Return the job script that runs the lines ``body``.

    Raises:
        ConfigError: a value that would be more than one word in a directive.
        LaunchError: account, or a queue that takes the job, is missing.
    """
    marks = {"pbs": "#PBS", "slurm": "#SBATCH"}
    write = {"pbs": _pbs, "slurm": _slurm}[place.scheduler]
    lines = [f"{marks[place.scheduler]} {line}" for line in write(request, place.submit, place.machine)]
    # A login shell, so that there is a `module` command.
    return "\n".join(["#!/bin/bash -l", *lines, "set -e", *body]) + "\n"


def _pbs(request: Request, facts: SubmitFacts, machine: str) -> Iterator[str]:
    chunk = request.chunk or facts.chunk
    gpus = facts.gpus if request.gpus and not request.chunk else ""
    parts = [str(request.nodes), *(_filled(part, request, "--chunk") for part in (chunk, gpus) if part)]
    yield f"-N {request.name}"
    yield f"-l select={':'.join(parts)}"
    yield f"-l walltime={clock(request.seconds)}"
    if facts.filesystems:
        yield f"-l filesystems={facts.filesystems}"
    if account := _account(request, facts, machine):
        yield f"-A {account}"
    if queue := choose_queue(request, facts, machine):
        yield f"{facts.queue_option or '-q'} {queue}"
    yield "-j oe"
    yield "-k doe"
    if _WORD.fullmatch(request.output):
        yield f"-o {request.output}/"
    yield from _grouped((*facts.directives, *request.options))


def _slurm(request: Request, facts: SubmitFacts, machine: str) -> Iterator[str]:
    yield f"--job-name={request.name}"
    yield f"--nodes={request.nodes}"
    if request.ranks_per_host:
        yield f"--ntasks-per-node={request.ranks_per_host}"
    yield f"--time={clock(request.seconds)}"
    if account := _account(request, facts, machine):
        yield f"--account={account}"
    if queue := choose_queue(request, facts, machine):
        yield f"{facts.queue_option or '--partition'}={queue}"
    if facts.constraint and not any(word.startswith(("-C", "--constraint")) for word in request.options):
        yield f"--constraint={facts.constraint}"
    if facts.gpus and request.gpus:
        yield _filled(facts.gpus, request, "--option")
    # Only to the script's own process, which becomes the launcher: it hands the request on under
    # every starter. A warning that comes at once would be none.
    if 0 < facts.signal_lead_s <= request.seconds / 2:
        yield f"--signal=B:USR1@{facts.signal_lead_s}"
    if _WORD.fullmatch(request.output):
        yield f"--output={request.output}/%x-%j.out"
    yield from _grouped((*facts.directives, *request.options))


def _filled(text: str, request: Request, option: str) -> str:
    if "{ranks}" in text and not request.ranks_per_host:
        raise LaunchError(
            f"how many accelerators a host has is not known; set NGPU_PER_HOST, or what hosts have with {option}"
        )
    return _word(text.replace("{ranks}", str(request.ranks_per_host)), option)


def _account(request: Request, facts: SubmitFacts, machine: str) -> str:
    if facts.needs_account and not request.account:
        raise LaunchError(f"machine {machine} requires an account for every job; pass --account PROJECT")
    return _word(request.account, "--account") if request.account else ""


def choose_queue(request: Request, facts: SubmitFacts, machine: str) -> str:
    """Return the queue the user named, else the machine's first that takes so many hosts for so long.

    Raises:
        LaunchError: none of the machine's queues takes the job, or the whole chain; it lists them.
    """
    if request.queue:
        _refuse_long_chain(request, facts)
        return _word(request.queue, "--queue")
    hours = request.seconds / 3600
    fitting = [
        queue for queue in facts.queues if request.nodes in queue.hosts and (not queue.hours or hours <= queue.hours)
    ]
    for queue in fitting:
        if not queue.jobs or request.jobs <= queue.jobs:
            return queue.name
    if not facts.queues:
        return ""
    if fitting:
        raise LaunchError(
            f"--chain {request.jobs}: no queue of machine {machine} for {request.nodes} hosts holds that many "
            f"jobs of one user; use --chain {max(queue.jobs for queue in fitting)} and submit again when they "
            "have ended; "
            f"queues: {', '.join(_shown(facts.queues))}"
        )
    timed = [queue for queue in facts.queues if request.nodes in queue.hosts and queue.hours]
    chains = [(math.ceil(hours / queue.hours), queue) for queue in timed]
    possible = [(count, queue.hours) for count, queue in chains if not queue.jobs or count <= queue.jobs]
    count, longest = min(possible, default=(0, 0.0))
    chain = f"; --chain {count} makes it of jobs of --walltime {longest:g}h" if count else ""
    raise LaunchError(
        f"no queue of machine {machine} takes {request.nodes} hosts for {clock(request.seconds)}{chain}; "
        f"queues: {', '.join(_shown(facts.queues))}; --queue names another"
    )


def _refuse_long_chain(request: Request, facts: SubmitFacts) -> None:
    """Refuse a chain of which the named queue takes the first jobs only.

    Raises:
        LaunchError: every queue of this name holds fewer jobs of one user.
    """
    limits = [queue.jobs for queue in facts.queues if queue.name == request.queue]
    if limits and all(0 < most < request.jobs for most in limits):
        raise LaunchError(
            f"--chain {request.jobs} --queue {request.queue}: the queue holds {max(limits)} job"
            f"{'s'[: max(limits) > 1]} of one user, waiting ones included; use --chain {max(limits)}, or another "
            f"queue: {', '.join(_shown(facts.queues))}"
        )


def _shown(queues: Sequence[Queue]) -> list[str]:
    return [str(queue) for queue in queues]


def _grouped(words: Sequence[str]) -> Iterator[str]:
    """Yield directives: a word that begins with - begins one."""
    line: list[str] = []
    for word in words:
        if word.startswith("-") and line:
            yield " ".join(line)
            line = []
        line.append(_word(word, "--option"))
    if line:
        yield " ".join(line)


def _word(text: str, option: str) -> str:
    if not _WORD.fullmatch(text):
        raise ConfigError(
            f"{option} {text!r}: a scheduler's directive takes letters, digits and ._:@%+=,/~[]&|*!()- only"
        )
    return text


def clock(seconds: float) -> str:
    """Return whole seconds as ``6:00:00``, which PBS and SLURM read alike."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def job_name(name: str) -> str:
    """Return a name that PBS and SLURM take, which begins with a letter."""
    return "megads-" + (re.sub(r"[^A-Za-z0-9_.-]", "_", name) or "job")[:60]


def account_of(given: str, scheduler: str, env: Mapping[str, str]) -> str:
    """Return ``--account``, else what the scheduler's own variable says."""
    return given or env.get(_ACCOUNTS[scheduler], "")


def send(
    text: str,
    scheduler: str,
    env: Mapping[str, str],
    *,
    chain: int = 1,
    keep: Callable[[Sequence[str]], None] = lambda jobs: None,
) -> list[str]:
    """Submit a job script ``chain`` times, each job after the end of the one before; return the job ids.

    Args:
        text: of the script.
        scheduler: "pbs" or "slurm".
        env: of this command.
        chain: how many jobs.
        keep: is given the ids so far after every submission, so that none is lost when a later one fails.

    Raises:
        LaunchError: the scheduler's program is missing or refuses; it names the jobs submitted before.
    """
    program = PROGRAMS[scheduler]
    if not shutil.which(program, path=env.get("PATH", "")):
        raise LaunchError(f"{program} is not on PATH; submit from a login node, or see the job with --dry-run")
    jobs: list[str] = []
    for _ in range(chain):
        argv = [program, *_after(scheduler, jobs[-1:])]
        done = subprocess.run(argv, input=text, env=dict(env), capture_output=True, text=True)
        words = done.stdout.split()
        if done.returncode or not words:
            said = " ".join((done.stderr.strip() or done.stdout.strip() or "no job id").split("\n"))
            before = f"; submitted before: {' '.join(jobs)}" if jobs else ""
            raise LaunchError(f"{shlex.join(argv)}: {said}{before}")
        # sbatch --parsable gives ID;CLUSTER.
        jobs.append(words[-1].partition(";")[0])
        keep(jobs)
    return jobs


def _after(scheduler: str, jobs: Sequence[str]) -> list[str]:
    if scheduler == "pbs":
        return [word for job in jobs for word in ("-W", f"depend=afterany:{job}")]
    return ["--parsable", *(f"--dependency=afterany:{job}" for job in jobs)]
