"""What a scheduler is to a launch: one row of data and functions for each, in a file of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megads.config.machine_facts import SubmitFacts
from megads.config.schema import RunConfig
from megads.launch.schedulers.batch_job import BatchJob

_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{1,2})(?::(\d{1,2}))?")

JOB = "job.sh"
"""In the run folder: the job that ``megads train --submit`` submitted."""


def parse_clock(text: str) -> float | None:
    """Return seconds for ``[D-]H:MM[:SS]``, where two numbers without days are minutes and seconds."""
    match = _CLOCK.fullmatch(text)
    if not match:
        return None
    days, first, second, third = match.groups()
    if third is None and days is None:
        return int(first) * 60.0 + int(second)
    return int(days or 0) * 86400.0 + int(first) * 3600.0 + int(second) * 60.0 + int(third or 0)


@dataclass(frozen=True)
class Question:
    """A command that knows when a job ends, and how to read its answer.

    ``read(answer, now)`` returns unix seconds, or 0 for a job without an end; it raises
    ValueError for an answer it does not understand.
    """

    argv: tuple[str, ...]
    read: Callable[[str, float], float]


@dataclass(frozen=True)
class Submission:
    """How jobs are submitted."""

    program: str  # takes a job script on its standard input
    account: str  # the variable with which users give an account once
    mark: str  # begins a directive
    directives: Callable[[BatchJob, SubmitFacts, str], Iterator[str]]  # given the machine's facts and its name
    after: Callable[[Sequence[str]], list[str]]  # options of a job that starts after the end of those given, at most 1
    once: tuple[str, ...]  # options of a job that is not started again, when a host failed for instance
    exclude: str = ""  # begins the option that keeps hosts out of a job, a comma between them; "": there is none
    survives: tuple[str, ...] = ()  # options with which a job keeps its other hosts when one fails; (): none advised


@dataclass(frozen=True)
class Scheduler:
    """Everything that is one scheduler's own. Of several variables or questions the first that answers counts."""

    name: str  # in the machine's facts
    title: str  # in messages
    inside: tuple[str, ...]  # a process is in a job when all these variables are set
    job_id: tuple[str, ...]  # variables that hold it
    hosts: Callable[[Mapping[str, str]], tuple[str, ...]]  # of the job, given the environment
    only_its_own: bool = True  # its launchers take no hosts but the job's, in the job's order
    launchers: tuple[str, ...] = ()  # what comes with it and knows its hosts, in LAUNCH_WITH's words
    end_variable: str = ""  # holds the end of the job in unix seconds
    questions: Callable[[str], tuple[Question, ...]] = lambda job: ()  # what knows the end of a job, given its id
    # What users may not expect of a job of a run, given its hosts, spare hosts and run folder.
    notes: Callable[[RunConfig, Mapping[str, str], int, int, Path], Iterable[str]] = lambda *job: ()
    # Names or addresses that it knows for a host whose own name may not resolve.
    addresses: Callable[[str, Mapping[str, str]], Iterable[str]] = lambda host, env: ()
    interactive: str = ""  # how to get into a job, for a message
    submission: Submission | None = None  # None: no jobs are submitted to it
