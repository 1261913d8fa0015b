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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from megads.cluster.hosts import this_host
from megads.cluster.machine import count_accelerators, machine_name
from megads.cluster.ranks import TOKEN
from megads.config.sources.presets import read_machine
from megads.doctor.launcher import host_checks
from megads.doctor.launcher.host_checks import Site, scheduler_of
from megads.doctor.launcher.vendor_checks import check_vendor
from megads.errors import LaunchError, MegadsError
from megads.launch.containers.enclose import rank_python
from megads.launch.launchers.command import plan_launch
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.preflight.capabilities import check_host
from megads.launch.request import TrainRequest, resolve_request
from megads.launch.schedulers.allocation import SCHEDULERS, Allocation, find_allocation, in_a_job
from megads.launch.supervise.run import run_plan
from megads.monitor.check_stages import OPTIONS, RECORD, Finding, StageRunner, Verdict, finding_of, summary
from megads.storage.reading import parse_json, read_text

LIMIT_S = 120.0
"""On one stage: Python and torch may take a minute to load from a file system that many hosts read."""

FROZEN_S = 30.0
"""Beyond twice the limit of a stage; a shared file system may show late what rank 0 wrote."""


def check_health(
    request: TrainRequest, out: IO[str], err: IO[str], *, limit_s: float = LIMIT_S, as_json: bool = False
) -> int:
    """Check this host, then every rank of the allocation, stage by stage; return the exit code.

    ``out`` gets the stages as they happen; with ``as_json`` ``err`` gets them, and ``out`` one JSON object at the end.

    Returns:
        0: nothing is wrong. 1: a stage failed. 130: interrupted.

    Raises:
        MegadsError: a wrong setting, or a folder that cannot be written.
    """
    site = _site(request)
    lines = err if as_json else out

    def report(finding: Finding) -> None:
        lines.write(finding.lines())
        lines.flush()

    examiner = StageRunner(limit_s, report)
    login = _is_login_node(site)
    hosts = (this_host(),)
    allocation = Allocation("none", hosts, 0) if login else find_allocation(site.run, site.request.env, site.facts)
    _examine(examiner, site, allocation)
    code = 0
    if login:
        examiner.add(Finding("ranks", Verdict("skipped", _not_here(site)), 0.0))
    else:
        with shared_folder() as folder:
            words = ["health", "--folder", str(folder)]
            plan = plan_ranks(site, allocation, words, folder)
            master = plan.env.get("MASTER_ADDR", "")
            port = plan.env.get("MASTER_PORT", "") if allocation.world_size > 1 else ""
            examiner.run("port", lambda: host_checks.check_port(port, master))
            code = _run_ranks(examiner, plan, site, allocation, folder, as_json=as_json)
    failed = any(finding.verdict.status == "failed" for finding in examiner.findings)
    code = 130 if code == 130 else int(failed or code != 0)
    last = "interrupted" if code == 130 else summary(examiner.findings)
    lines.write(f"\n{'doctor':<14} {last}\n")
    if as_json:
        found = {"ok": code == 0, "exit_code": code, "stages": [each.as_dict() for each in examiner.findings]}
        out.write(json.dumps(found) + "\n")
    return code


def _site(request: TrainRequest) -> Site:
    machine = machine_name(request.hostname, request.env, request.root)
    run = resolve_request(request, machine, needs_checkpoint=False).run
    return Site(request, run, read_machine(run.machine, request.root).facts)


def _is_login_node(site: Site) -> bool:
    """Return whether ranks belong on other hosts: outside a job, on a machine whose devices are not here."""
    in_job = in_a_job(site.request.env) or site.run.launch.hostfile
    on_cpu = site.facts.device in ("", "cpu") or site.request.env.get("MEGADS_DEVICE") == "cpu"
    return not in_job and not on_cpu and bool(scheduler_of(site)) and not count_accelerators(site.request.env)


def _not_here(site: Site) -> str:
    scheduler = scheduler_of(site)
    return (
        f"this host shows no {site.facts.device} device and is not in a job, like a login node: the ranks' versions, "
        f"clocks, devices, disks, collectives and speeds are not checked; call megads doctor inside a job "
        f"({SCHEDULERS[scheduler].interactive} ...)"
    )


def _examine(examiner: StageRunner, site: Site, allocation: Allocation) -> None:
    """Do what needs no rank."""
    wrong = (MegadsError,)
    folder = Path(site.run.dir or "runs")
    examiner.run("machine", lambda: host_checks.describe_machine(site, allocation))
    examiner.run("python", lambda: host_checks.check_python(site), catch=wrong)
    examiner.run("checkout", lambda: host_checks.check_checkout(site))
    examiner.run("run folder", lambda: host_checks.check_disk(folder), catch=wrong)
    examiner.run("accelerators", lambda: _accelerators(site, allocation), catch=wrong)
    examiner.run("vendor", lambda: check_vendor(site, allocation), catch=wrong)
    examiner.run("limits", lambda: host_checks.check_limits(allocation.world_size))
    # The names get their limit; the stage needs a little more to say which one is missing.
    limit_s, scheduler = 0.8 * examiner.limit_s, allocation.scheduler
    examiner.run("names", lambda: host_checks.check_names(allocation.hosts, limit_s, scheduler=scheduler))


def _accelerators(site: Site, allocation: Allocation) -> Verdict:
    if allocation.world_size:
        check_host(site.run, site.request.env)
    return host_checks.check_accelerators(site, allocation)


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Make a folder that every host sees, as they see the run folder, for the time of the check."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".megads-doctor-", dir=Path.cwd()))
    except OSError as error:
        raise LaunchError(f"this folder cannot be written ({error.strerror}); run megads doctor in another") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def plan_ranks(
    site: Site, allocation: Allocation, words: Sequence[str], folder: Path, extra: Mapping[str, str] | None = None
) -> LaunchPlan:
    """Plan ranks that run the command ``words`` of megads, with a secret and the variables ``extra``."""
    request = site.request
    plan = plan_launch(
        site.run,
        allocation,
        [rank_python(site.run.launch, request.python), "-m", "megads", *words],
        request.env,
        facts=site.facts,
        folder=folder,
        extra={TOKEN: secrets.token_hex(16), **(extra or {})},
    )
    # In place would replace this process, and nobody would clean up.
    return replace(plan.hiding(TOKEN), in_place=False)


def _run_ranks(
    examiner: StageRunner, plan: LaunchPlan, site: Site, allocation: Allocation, folder: Path, *, as_json: bool
) -> int:
    """Start the ranks, which report their stages themselves, and take over what they found."""
    options = {
        "limit_s": examiner.limit_s,
        "json": as_json,
        "folder": str(Path(site.run.dir or "runs").absolute()),
        "timeout_s": site.run.launch.timeout_s,
        "hosts": list(allocation.hosts),
        "ranks_per_host": allocation.ranks_per_host,
    }
    (folder / OPTIONS).write_text(json.dumps(options), encoding="utf8")
    watch = Silence(folder / RECORD, 2 * examiner.limit_s + FROZEN_S)
    started = time.monotonic()
    with _stdout_to_stderr() if as_json else nullcontext(), watch:
        code = run_plan(plan, folder, site.request.env, saves=False)
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
        changed, size = time.monotonic(), -1
        while not self._over.wait(0.5):
            now = -1
            with suppress(OSError):
                now = self.record.stat().st_size
            if now != size:
                changed, size = time.monotonic(), now
            if time.monotonic() - changed > self.limit_s:
                self.silent = True
                os.kill(os.getpid(), signal.SIGTERM)
                return


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Let what ranks and their launcher print go to stderr, so that stdout has the JSON object only."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
