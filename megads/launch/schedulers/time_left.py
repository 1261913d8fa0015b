"""When a job's time is over: what its scheduler says, or the user's own ``WALLTIME``.

A run that knows its end saves and leaves in time. One that does not is killed by the
scheduler, after a warning of some seconds (PBS) or none.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from megads.errors import ConfigError
from megads.launch.schedulers.allocation import NO_SCHEDULER, SCHEDULERS, Allocation, job_id
from megads.launch.schedulers.base import Question, Scheduler, parse_clock

PATIENCE_S = 15.0  # for an answer of a scheduler

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WITH_UNITS = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")


def parse_walltime(text: str, origin: str = "WALLTIME") -> float:
    """Return seconds for ``6:00:00``, ``30:00`` (half an hour), ``1-12:00:00``, ``90m``, ``6h`` or ``1h30m``.

    Raises:
        ConfigError: another form, or no time at all. A bare number is refused: it would mean
            seconds to PBS and minutes to SLURM.
    """
    given = text.strip().lower()
    seconds = parse_clock(given)
    if seconds is None and _WITH_UNITS.fullmatch(given):
        seconds = sum(float(part[:-1]) * _UNITS[part[-1]] for part in re.findall(r"[\d.]+[dhms]", given))
    if not seconds:
        raise ConfigError(
            f"{origin}={text}: not a time; write hours like 6:00:00 or 6h, minutes like 30:00 or 30m, days "
            "like 1-00:00:00"
        )
    return seconds


def started_at(proc: Path = Path("/proc")) -> float:
    """Return when this process came to be, in unix seconds.

    A job script that becomes the launcher by ``exec`` is the same process, so what it did
    before (loading modules, making an environment) counts, as it does for the scheduler.
    """
    now = time.time()
    try:
        ticks = int((proc / "self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
        age = float((proc / "uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return now
    return now - age if ticks and age > 0 else now


def ends_at(
    allocation: Allocation,
    env: Mapping[str, str],
    walltime: str,
    started: float,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> float:
    """Return the time at which the job ends, in unix seconds; 0.0 when that is not known.

    The earlier of what the scheduler says and ``walltime`` counted from ``started``. The
    scheduler is asked at most once for each of its commands; one that does not answer does
    not stop the run.

    Args:
        started: when the job's time began, as far as this process knows, in unix seconds.
        say: takes one line when the scheduler could not be asked.

    Raises:
        ConfigError: ``walltime`` is not a time.
    """
    ends = [started + parse_walltime(walltime)] if walltime else []
    scheduler, job = _job(allocation, env)
    ends_then = env.get(scheduler.end_variable, "") if scheduler.end_variable else ""
    if ends_then.isdigit():
        ends.append(float(ends_then))
    elif questions := scheduler.questions(job):
        answer, problem = _ask(questions, env)
        if problem:
            cure = "" if walltime else "; set WALLTIME, e.g. 6:00:00, so that the run saves in time"
            say(f"the end of {scheduler.name} job {job} is not known: {problem}{cure}")
        if answer:
            ends.append(answer)
    return min(ends, default=0.0)


def _job(allocation: Allocation, env: Mapping[str, str]) -> tuple[Scheduler, str]:
    """Return the scheduler and the job this process is in, as far as the variables of a job tell."""
    for row in SCHEDULERS.values():
        job = job_id(row, env)
        if allocation.scheduler in (row.name, "none", "") and (job or allocation.scheduler == row.name):
            return row, job or allocation.job_id
    return NO_SCHEDULER, ""


def _ask(questions: Sequence[Question], env: Mapping[str, str]) -> tuple[float, str]:
    """Return the first answer, or 0 and why none of the questions was answered."""
    problem = ""
    for question in questions:
        try:
            done = subprocess.run(
                question.argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE_S,
            )
            if done.returncode == 0:
                return question.read(done.stdout, time.time()), ""
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        except (OSError, subprocess.TimeoutExpired) as error:
            last = getattr(error, "strerror", None) or f"no answer in {PATIENCE_S:g} s"
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            last = f"{done.stdout.strip()[:60]!r} is not understood"
        problem = problem or f"{question.argv[0]}: {last}"
    return 0.0, problem
