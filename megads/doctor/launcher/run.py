"""``megads doctor``: what the launcher checks here, then what the ranks check together."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from megads.cluster.hosts import this_host
from megads.cluster.machine import count_accelerators, machine_name
from megads.cluster.ranks import TOKEN
from megads.config.sources.presets import read_machine
from megads.config.sources.resolve import resolve
from megads.doctor.launcher import host_checks
from megads.doctor.launcher.host_checks import Site, scheduler_of
from megads.errors import LaunchError, MegadsError
from megads.launch.preflight.capabilities import check_host
from megads.launch.request import TrainRequest
from megads.launch.schedulers.allocation import Allocation, find_allocation
from megads.launch.starters.command import plan_launch
from megads.launch.starters.plan import LaunchPlan
from megads.launch.supervise.run import run_plan
from megads.monitor.check_stages import OPTIONS, RECORD, Examiner, Finding, Verdict, finding_of, summary
from megads.storage.reading import parse_json, read_text

LIMIT_S = 120.0
"""On one stage: Python and torch may take a minute to load from a file system that many hosts read."""

FROZEN_S = 30.0
"""Beyond twice the limit of a stage; a shared file system may show late what rank 0 wrote."""

JOB_ID = ("PBS_JOBID", "SLURM_JOB_ID", "FLUX_JOB_ID", "LSB_JOBID")
INSIDE = {"slurm": "salloc -N 2", "pbs": "qsub -I -l select=2", "flux": "flux alloc -N 2", "lsf": "bsub -Is -nnodes 2"}
"""Scheduler -> how to get into a job, for a message."""


@dataclass(frozen=True)
class Wanted:
    """How the check is made.

    Attributes:
        limit_s: on one stage.
        as_json: one JSON object on stdout, and the stages on stderr.
    """

    limit_s: float = LIMIT_S
    as_json: bool = False


def check_health(ask: TrainRequest, wanted: Wanted, out: IO[str], err: IO[str]) -> int:
    """Check this host, then every rank of the allocation, stage by stage; return the exit code.

    Args:
        ask: the settings, of which those that decide hosts, ranks and device matter.
        wanted: limits and form.
        out: gets the stages as they happen, or the JSON object at the end.
        err: gets the stages when ``out`` gets the JSON object.

    Returns:
        0: nothing is wrong. 1: a stage failed. 130: interrupted.

    Raises:
        MegadsError: a wrong setting, or a folder that cannot be written.
    """
    site = _site(ask)
    lines = err if wanted.as_json else out

    def tell(finding: Finding) -> None:
        lines.write(finding.lines())
        lines.flush()

    examiner = Examiner(wanted.limit_s, tell)
    login = _is_login_node(site)
    hosts = (this_host(),)
    allocation = Allocation("none", hosts, 0) if login else find_allocation(site.run, site.env, site.facts)
    _examine(examiner, site, allocation)
    code = 0
    if login:
        examiner.add(Finding("ranks", Verdict("skipped", _not_here(site)), 0.0))
    else:
        with _folder() as folder:
            plan = _plan(ask, site, allocation, folder)
            master = plan.env.get("MASTER_ADDR", "")
            port = plan.env.get("MASTER_PORT", "") if allocation.world_size > 1 else ""
            examiner.run("port", lambda: host_checks.check_port(port, master))
            code = _run_ranks(examiner, plan, site, allocation, folder, wanted)
    failed = any(finding.verdict.status == "failed" for finding in examiner.findings)
    code = 130 if code == 130 else int(failed or code != 0)
    last = "interrupted" if code == 130 else summary(examiner.findings)
    lines.write(f"\n{'doctor':<14} {last}\n")
    if wanted.as_json:
        found = {"ok": code == 0, "exit_code": code, "stages": [each.as_dict() for each in examiner.findings]}
        out.write(json.dumps(found) + "\n")
    return code


def _site(ask: TrainRequest) -> Site:
    machine = machine_name(ask.hostname, ask.env, ask.root)
    asked = resolve(ask.preset, env=ask.env, overrides=ask.overrides(), flags=ask.flags, machine=machine, root=ask.root)
    facts = read_machine(machine, ask.root).facts
    run = asked.run.model_copy(update={"machine": machine})
    return Site(run, facts, ask.hostname, ask.root, ask.env, ask.python)


def _is_login_node(site: Site) -> bool:
    """Return whether ranks belong on other hosts: outside a job, on a machine whose devices are not here."""
    in_job = any(site.env.get(name) for name in JOB_ID) or site.run.launch.hostfile
    on_cpu = site.facts.device in ("", "cpu") or site.env.get("MEGADS_DEVICE") == "cpu"
    return not in_job and not on_cpu and bool(scheduler_of(site)) and not count_accelerators(site.env)


def _not_here(site: Site) -> str:
    scheduler = scheduler_of(site)
    return (
        f"this host shows no {site.facts.device} device and is not in a job, like a login node: the ranks' versions, "
        f"clocks, devices, disks, collectives and speeds are not checked; call megads doctor inside a job "
        f"({INSIDE.get(scheduler, scheduler)} ...)"
    )


def _examine(examiner: Examiner, site: Site, allocation: Allocation) -> None:
    """Do what needs no rank."""
    wrong = (MegadsError,)
    folder = Path(site.run.dir or "runs")
    examiner.run("machine", lambda: host_checks.describe_machine(site, allocation))
    examiner.run("python", lambda: host_checks.check_python(site), catch=wrong)
    examiner.run("checkout", lambda: host_checks.check_checkout(site))
    examiner.run("run folder", lambda: host_checks.check_disk(folder), catch=wrong)
    examiner.run("accelerators", lambda: _accelerators(site, allocation), catch=wrong)
    examiner.run("limits", lambda: host_checks.check_limits(allocation.world_size))
    # The names get their limit; the stage needs a little more to say which one is missing.
    limit_s, scheduler = 0.8 * examiner.limit_s, allocation.scheduler
    examiner.run("names", lambda: host_checks.check_names(allocation.hosts, limit_s, scheduler=scheduler))


def _accelerators(site: Site, allocation: Allocation) -> Verdict:
    if allocation.world_size:
        check_host(site.run, site.env)
    return host_checks.check_accelerators(site, allocation)


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder that every host sees, as they see the run folder, for the time of the check."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".megads-doctor-", dir=Path.cwd()))
    except OSError as error:
        raise LaunchError(f"this folder cannot be written ({error.strerror}); run megads doctor in another") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _plan(ask: TrainRequest, site: Site, allocation: Allocation, folder: Path) -> LaunchPlan:
    command = [ask.python, "-m", "megads", "health", "--folder", str(folder)]
    extra = {TOKEN: secrets.token_hex(16)}
    plan = plan_launch(site.run, allocation, command, site.env, facts=site.facts, folder=folder, extra=extra)
    plan = plan.hiding(TOKEN)
    # In place would replace this process, and nobody would clean up.
    return replace(plan, in_place=False)


def _run_ranks(
    examiner: Examiner, plan: LaunchPlan, site: Site, allocation: Allocation, folder: Path, wanted: Wanted
) -> int:
    """Start the ranks, which report their stages themselves, and take over what they found."""
    options = {
        "limit_s": wanted.limit_s,
        "json": wanted.as_json,
        "folder": str(Path(site.run.dir or "runs").absolute()),
        "timeout_s": site.run.launch.timeout_s,
        "hosts": list(allocation.hosts),
        "ranks_per_host": allocation.ranks_per_host,
    }
    (folder / OPTIONS).write_text(json.dumps(options), encoding="utf8")
    watch = Silence(folder / RECORD, 2 * wanted.limit_s + FROZEN_S)
    started = time.monotonic()
    with _stdout_is_stderr(wanted.as_json), watch:
        code = run_plan(plan, folder, site.env, saves=False)
    findings = _recorded(folder / RECORD)
    examiner.findings += findings
    interrupted = code > 128 and not watch.silent
    if watch.silent or (code and not interrupted and not any(each.verdict.status == "failed" for each in findings)):
        last = f"after {findings[-1].stage}" if findings else "not even that it started"
        why = f"rank 0 printed nothing for {watch.limit_s:g} s" if watch.silent else f"the ranks ended with {code}"
        expected = f"; it should run on {allocation.hosts[0]}; started by: {plan.line()}"
        examiner.add(Finding("ranks", Verdict("failed", f"{why}, {last}{expected}"), time.monotonic() - started))
    return 130 if interrupted else code


def _recorded(path: Path) -> list[Finding]:
    try:
        return [finding_of(parse_json(line)) for line in read_text(path).splitlines()]
    except (OSError, ValueError):
        return []


class Silence:
    """Ends the check when rank 0 writes nothing for a time, because then it can name nobody itself."""

    def __init__(self, record: Path, limit_s: float) -> None:
        self.record, self.limit_s = record, limit_s
        self.silent = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *problem: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        heard, size = time.monotonic(), -1
        while not self._over.wait(0.5):
            now = -1
            with suppress(OSError):
                now = self.record.stat().st_size
            if now != size:
                heard, size = time.monotonic(), now
            if time.monotonic() - heard > self.limit_s:
                self.silent = True
                os.kill(os.getpid(), signal.SIGTERM)
                return


@contextmanager
def _stdout_is_stderr(wanted: bool) -> Iterator[None]:
    """Let what ranks and their starter print go to stderr, so that stdout has the JSON object only."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
