"""What a job asks of its scheduler, in the words of every scheduler: account, queue, further options."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from megads.config.machine_facts import SubmitFacts
from megads.errors import ConfigError, LaunchError

DIRECTIVE = re.compile(r"[\w.:@%+=,/~\[\]&|*!()-]+", re.ASCII)
"""What may stand in a directive, which no shell reads: gpu&hbm80g is a constraint of SLURM's."""


@dataclass(frozen=True)
class BatchJob:
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


def filled(text: str, job: BatchJob, option: str) -> str:
    """Return resources as a directive takes them, with the ranks of a host in the place of ``{ranks}``."""
    if "{ranks}" in text and not job.ranks_per_host:
        raise LaunchError(
            f"how many accelerators a host has is not known; set NGPU_PER_HOST, or what hosts have with {option}"
        )
    return word(text.replace("{ranks}", str(job.ranks_per_host)), option)


def account(job: BatchJob, facts: SubmitFacts, machine: str) -> str:
    """Return the account to charge, empty where none is given and none is needed."""
    if facts.needs_account and not job.account:
        raise LaunchError(f"machine {machine} requires an account for every job; pass --account PROJECT")
    return word(job.account, "--account") if job.account else ""


def choose_queue(job: BatchJob, facts: SubmitFacts, machine: str) -> str:
    """Return the queue the user named, else the machine's first that takes so many hosts for so long.

    Raises:
        LaunchError: none of the machine's queues takes the job, or the whole chain; it lists them.
    """
    if job.queue:
        _refuse_long_chain(job, facts)
        return word(job.queue, "--queue")
    hours = job.seconds / 3600
    fitting = [
        queue for queue in facts.queues if job.nodes in queue.hosts and (not queue.hours or hours <= queue.hours)
    ]
    for queue in fitting:
        if not queue.jobs or job.jobs <= queue.jobs:
            return queue.name
    if not facts.queues:
        return ""
    if fitting:
        raise LaunchError(
            f"--chain {job.jobs}: no queue of machine {machine} for {job.nodes} hosts holds that many "
            f"jobs of one user; use --chain {max(queue.jobs for queue in fitting)} and submit again when they "
            f"have ended; queues: {', '.join(map(str, facts.queues))}"
        )
    timed = [queue for queue in facts.queues if job.nodes in queue.hosts and queue.hours]
    chains = [(math.ceil(hours / queue.hours), queue) for queue in timed]
    possible = [(count, queue.hours) for count, queue in chains if not queue.jobs or count <= queue.jobs]
    count, longest = min(possible, default=(0, 0.0))
    chain = f"; --chain {count} makes it of jobs of --walltime {longest:g}h" if count else ""
    raise LaunchError(
        f"no queue of machine {machine} takes {job.nodes} hosts for {clock(job.seconds)}{chain}; "
        f"queues: {', '.join(map(str, facts.queues))}; --queue names another"
    )


def _refuse_long_chain(job: BatchJob, facts: SubmitFacts) -> None:
    """Refuse a chain of which the named queue takes the first jobs only.

    Raises:
        LaunchError: every queue of this name holds fewer jobs of one user.
    """
    limits = [queue.jobs for queue in facts.queues if queue.name == job.queue]
    if limits and all(0 < most < job.jobs for most in limits):
        raise LaunchError(
            f"--chain {job.jobs} --queue {job.queue}: the queue holds {max(limits)} job"
            f"{'s'[: max(limits) > 1]} of one user, waiting ones included; use --chain {max(limits)}, or another "
            f"queue: {', '.join(map(str, facts.queues))}"
        )


def grouped(words: Sequence[str]) -> Iterator[str]:
    """Yield directives: a word that begins with - begins one."""
    line: list[str] = []
    for text in words:
        if text.startswith("-") and line:
            yield " ".join(line)
            line = []
        line.append(word(text, "--option"))
    if line:
        yield " ".join(line)


def word(text: str, option: str) -> str:
    """Return ``text``, which ``option`` gave, if it is one word in a directive."""
    if not DIRECTIVE.fullmatch(text):
        raise ConfigError(
            f"{option} {text!r}: a scheduler's directive takes letters, digits and ._:@%+=,/~[]&|*!()- only"
        )
    return text


def clock(seconds: float) -> str:
    """Return whole seconds as ``6:00:00``, which PBS and SLURM read alike."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
