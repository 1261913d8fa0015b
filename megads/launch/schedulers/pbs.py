"""PBS."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from megads.cluster.hosts import read_host_file, this_host
from megads.config.machine_facts import SubmitFacts
from megads.errors import LaunchError
from megads.launch.schedulers.base import Question, Scheduler, Submission, parse_clock
from megads.launch.schedulers.batch_job import DIRECTIVE, BatchJob, account, choose_queue, clock, filled, grouped
from megads.storage.reading import parse_json


def _hosts(env: Mapping[str, str]) -> tuple[str, ...]:
    if not env.get("PBS_NODEFILE"):
        raise LaunchError(
            f"PBS job {env['PBS_JOBID']}: PBS_NODEFILE is not set, so its hosts are not known; name them in HOSTFILE, "
            "or unset PBS_JOBID to use this host only"
        )
    path = Path(env["PBS_NODEFILE"])
    if not path.exists():
        raise LaunchError(
            f"PBS_NODEFILE={path}: no such file on {this_host()}; inside job {env['PBS_JOBID']} start megads on its "
            "first host; if the job has ended: unset PBS_JOBID PBS_NODEFILE"
        )
    return read_host_file(path, "PBS_NODEFILE")


def _end_of_json(answer: str, now: float) -> float:
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
    return _end(flat, now)


def _end_of_text(answer: str, now: float) -> float:
    """Read the lines ``name = value`` of ``qstat -f``."""
    if "Job Id:" not in answer:
        raise ValueError(answer)
    pairs = dict(re.findall(r"^\s*([\w.]+) = (.*)$", answer, re.MULTILINE))
    names = {"stime": "stime", "walltime": "Resource_List.walltime", "used": "resources_used.walltime"}
    return _end({key: pairs.get(name, "").strip() for key, name in names.items()}, now)


def _end(facts: Mapping[str, str], now: float) -> float:
    """Return start + wall time; without a start, now + wall time - used. A job without wall time has no end."""
    if not facts["walltime"]:
        return 0.0
    walltime = int(facts["walltime"]) if facts["walltime"].isdigit() else parse_clock(facts["walltime"])
    used = int(facts["used"]) if facts["used"].isdigit() else parse_clock(facts["used"] or "0:00")
    if walltime is None or used is None:
        raise ValueError(str(facts))
    if facts["stime"].isdigit():
        return int(facts["stime"]) + walltime
    if facts["stime"]:
        return time.mktime(time.strptime(facts["stime"], "%a %b %d %H:%M:%S %Y")) + walltime
    return now + walltime - used


def _directives(job: BatchJob, facts: SubmitFacts, machine: str) -> Iterator[str]:
    chunk = job.chunk or facts.chunk
    gpus = facts.gpus if job.gpus and not job.chunk else ""
    parts = [str(job.nodes), *(filled(part, job, "--chunk") for part in (chunk, gpus) if part)]
    yield f"-N {job.name}"
    yield f"-l select={':'.join(parts)}"
    yield f"-l walltime={clock(job.seconds)}"
    if facts.filesystems:
        yield f"-l filesystems={facts.filesystems}"
    if name := account(job, facts, machine):
        yield f"-A {name}"
    if queue := choose_queue(job, facts, machine):
        yield f"{facts.queue_option or '-q'} {queue}"
    yield "-j oe"
    yield "-k doe"
    if DIRECTIVE.fullmatch(job.output):
        yield f"-o {job.output}/"
    yield from grouped((*facts.directives, *job.options))


def _after(jobs: Sequence[str]) -> list[str]:
    return [word for job in jobs for word in ("-W", f"depend=afterany:{job}")]


PBS = Scheduler(
    "pbs",
    "PBS job",
    inside=("PBS_JOBID",),
    job_id=("PBS_JOBID",),
    hosts=_hosts,
    only_its_own=False,
    launchers=("pals",),
    questions=lambda job: (
        Question(("qstat", "-f", "-F", "json", job), _end_of_json),
        Question(("qstat", "-f", job), _end_of_text),
    ),
    interactive="qsub -I -l select=2",
    submission=Submission("qsub", "PBS_ACCOUNT", "#PBS", _directives, _after, once=("-r", "n")),
)
