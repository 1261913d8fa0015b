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
from dataclasses import dataclass
from pathlib import Path

from megads.errors import ConfigError
from megads.launch.schedulers.allocation import Allocation
from megads.storage.reading import parse_json

PATIENCE_S = 15.0  # for an answer of a scheduler

_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{1,2})(?::(\d{1,2}))?")
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WITH_UNITS = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")


def parse_walltime(text: str, origin: str = "WALLTIME") -> float:
    """Return seconds for ``6:00:00``, ``30:00`` (half an hour), ``1-12:00:00``, ``90m``, ``6h`` or ``1h30m``.

    Args:
        text: the duration.
        origin: where it came from, for the error message.

    Raises:
        ConfigError: another form, or no time at all. A bare number is refused: it would mean
            seconds to PBS and minutes to SLURM.
    """
    given = text.strip().lower()
    seconds = _clock(given)
    if seconds is None and _WITH_UNITS.fullmatch(given):
        seconds = sum(float(part[:-1]) * _UNITS[part[-1]] for part in re.findall(r"[\d.]+[dhms]", given))
    if not seconds:
        raise ConfigError(
            f"{origin}={text}: not a time; write hours like 6:00:00 or 6h, minutes like 30:00 or 30m, days "
            "like 1-00:00:00"
        )
    return seconds


def _clock(text: str) -> float | None:
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
        allocation: its scheduler and job.
        env: the environment of the job.
        walltime: ``launch.walltime``, or empty.
        started: when the job's time began, as far as this process knows, in unix seconds.
        say: takes one line when the scheduler could not be asked.

    Raises:
        ConfigError: ``walltime`` is not a time.
    """
    ends = [started + parse_walltime(walltime)] if walltime else []
    scheduler, job = _job(allocation, env)
    told = env.get("SLURM_JOB_END_TIME", "") if scheduler == "slurm" else ""
    if told.isdigit():
        ends.append(float(told))
    elif scheduler in QUESTIONS:
        answer, problem = _ask(QUESTIONS[scheduler](job), env)
        if problem:
            cure = "" if walltime else "; set WALLTIME, e.g. 6:00:00, so that the run saves in time"
            say(f"the end of {scheduler} job {job} is not known: {problem}{cure}")
        if answer:
            ends.append(answer)
    return min(ends, default=0.0)


def _job(allocation: Allocation, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the scheduler and the job this process is in, empty where there is none."""
    for scheduler, names in JOB_VARIABLES.items():
        job = next((env[name] for name in names if env.get(name)), "")
        if allocation.scheduler in (scheduler, "none", "") and (job or allocation.scheduler == scheduler):
            return scheduler, job or allocation.job_id
    return "", ""


JOB_VARIABLES = {
    "slurm": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "pbs": ("PBS_JOBID",),
    "flux": ("FLUX_JOB_ID", "FLUX_ENCLOSING_ID"),
    "lsf": ("LSB_JOBID",),
}


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


def _slurm_left(answer: str, now: float) -> float:
    """Read ``squeue -o %L``: ``1-02:03:04``, ``2:03:04``, ``3:04``, or UNLIMITED."""
    text = answer.strip()
    if text in ("UNLIMITED", "NOT_SET"):
        return 0.0
    seconds = _clock(text)
    if seconds is None:
        raise ValueError(text)
    return now + seconds


def _slurm_end(answer: str, now: float) -> float:
    """Read ``EndTime=2026-01-31T12:00:00`` of ``scontrol show job``, in local time."""
    match = re.search(r"\bEndTime=(\S+)", answer)
    if not match:
        raise ValueError(answer)
    if match[1] in ("Unknown", "None", "NONE"):
        return 0.0
    return time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))


def _pbs_json(answer: str, now: float) -> float:
    """Read ``qstat -f -F json`` of one job."""
    jobs = parse_json(answer).get("Jobs")
    if not isinstance(jobs, dict) or len(jobs) != 1:
        raise ValueError(answer)
    facts = next(iter(jobs.values()))
    flat = {
        "stime": str(facts.get("stime", "")),
        "walltime": str(facts.get("Resource_List", {}).get("walltime", "")),
        "used": str(facts.get("resources_used", {}).get("walltime", "")),
    }
    return _pbs_end(flat, now)


def _pbs_text(answer: str, now: float) -> float:
    """Read the lines ``name = value`` of ``qstat -f``."""
    if "Job Id:" not in answer:
        raise ValueError(answer)
    pairs = dict(re.findall(r"^\s*([\w.]+) = (.*)$", answer, re.MULTILINE))
    names = {"stime": "stime", "walltime": "Resource_List.walltime", "used": "resources_used.walltime"}
    return _pbs_end({key: pairs.get(name, "").strip() for key, name in names.items()}, now)


def _pbs_end(facts: Mapping[str, str], now: float) -> float:
    """Return start + wall time; without a start, now + wall time - used. A job without wall time has no end."""
    if not facts["walltime"]:
        return 0.0
    walltime = int(facts["walltime"]) if facts["walltime"].isdigit() else _clock(facts["walltime"])
    used = int(facts["used"]) if facts["used"].isdigit() else _clock(facts["used"] or "0:00")
    if walltime is None or used is None:
        raise ValueError(str(facts))
    if facts["stime"].isdigit():
        return int(facts["stime"]) + walltime
    if facts["stime"]:
        return time.mktime(time.strptime(facts["stime"], "%a %b %d %H:%M:%S %Y")) + walltime
    return now + walltime - used


def _flux_left(answer: str, now: float) -> float:
    """Read the seconds of ``flux job timeleft``; a job without an end says infinity."""
    seconds = float(answer.strip())
    return now + seconds if seconds < 1e9 else 0.0


def _lsf_left(answer: str, now: float) -> float:
    """Read ``bjobs -o time_left``: ``11:12 L`` in hours and minutes, ``-`` for a job without an end."""
    text = answer.strip()
    if text in ("", "-"):
        return 0.0
    hours, minutes = text.split()[0].split(":")
    return now + int(hours) * 3600 + int(minutes) * 60


QUESTIONS: dict[str, Callable[[str], tuple[Question, ...]]] = {
    "slurm": lambda job: (
        Question(("squeue", "-h", "-j", job, "-o", "%L"), _slurm_left),
        Question(("scontrol", "-o", "show", "job", job), _slurm_end),
    ),
    "pbs": lambda job: (
        Question(("qstat", "-f", "-F", "json", job), _pbs_json),
        Question(("qstat", "-f", job), _pbs_text),
    ),
    "flux": lambda job: (Question(("flux", "job", "timeleft"), _flux_left),),
    "lsf": lambda job: (Question(("bjobs", "-noheader", "-o", "time_left", job), _lsf_left),),
}
