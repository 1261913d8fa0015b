"""A check of a suspect before it is blamed: ``megads doctor``'s ranks, on that host alone."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from megads.cluster.ranks import TOKEN
from megads.config.machine_facts import Facts
from megads.config.schema import RunConfig
from megads.errors import MegadsError
from megads.launch.containers.enclose import rank_python
from megads.launch.launchers.command import plan_launch
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.schedulers.allocation import Allocation
from megads.monitor.check_stages import OPTIONS, RECORD, finding_of
from megads.storage.reading import parse_json, read_text

LIMIT_S = 60.0
"""For all stages of a check together."""
STAGE_S = 30.0


@dataclass(frozen=True)
class Health:
    """What a check of a host found; ``unknown`` where it could not be made, or fails everywhere."""

    state: Literal["healthy", "broken", "unknown"]
    why: str = ""


@dataclass(frozen=True)
class Probe:
    """Checks hosts of a job, each by ranks of their own.

    A host is broken only if another one, which did not fail, passes the same check: a file
    system or a launcher that fails everywhere is no fault of the host.
    """

    plan: Callable[[str, Path], LaunchPlan]
    """Returns what checks a host, given a folder that all hosts see."""
    folder: Path
    options: Mapping[str, object]
    env: Mapping[str, str]
    limit_s: float = LIMIT_S

    def check(self, suspect: str, others: tuple[str, ...] = ()) -> Health:
        """Return the health of ``suspect``, compared with the first of ``others`` where it seems broken."""
        found = self._check(suspect)
        if found.state != "broken" or not others:
            return found
        control = self._check(others[0])
        if control.state != "healthy":
            return Health("unknown", f"{others[0]} fails the same check ({control.why})")
        return found

    def _check(self, host: str) -> Health:
        try:
            folder = Path(tempfile.mkdtemp(prefix=".megads-probe-", dir=self.folder)).resolve()
        except OSError as error:
            return Health("unknown", f"{self.folder} cannot be written: {error.strerror}")
        try:
            (folder / OPTIONS).write_text(json.dumps({**self.options, "hosts": [host]}), encoding="utf8")
            code = self._run(self.plan(host, folder), folder)
            return _health(folder / RECORD, code, self.limit_s)
        except (OSError, MegadsError) as error:
            return Health("unknown", f"the check cannot be started: {error}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, plan: LaunchPlan, folder: Path) -> int | None:
        """Return the exit code of a check, None if it took too long."""
        plan.write_files()
        with open(folder / "said", "wb") as said:
            process = subprocess.Popen(
                plan.argv, env=plan.environment(self.env), stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip
            try:
                return process.wait(self.limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a check."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        until = time.monotonic() + 2.0
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)


def _health(record: Path, code: int | None, limit_s: float) -> Health:
    try:
        findings = [finding_of(parse_json(line)) for line in read_text(record).splitlines()]
    except (OSError, ValueError, LookupError, TypeError):
        findings = []
    failed = next((each for each in findings if each.verdict.status == "failed"), None)
    if failed is not None:
        return Health("broken", f"{failed.stage}: {failed.verdict.text}")
    after = f" after {findings[-1].stage}" if findings else ""
    if code is None:
        return Health("broken", f"the check did not end within {limit_s:g} s{after}")
    if code or not findings:
        return Health("broken", f"the check ended with exit code {code}{after}")
    return Health("healthy", f"{len(findings)} stages")


def probe_of(
    run: RunConfig, allocation: Allocation, facts: Facts, env: Mapping[str, str], python: str, folder: Path
) -> Probe:
    """Return the check of hosts of a run's job; ``folder`` is the run folder, which all hosts see."""

    def plan(host: str, shared: Path) -> LaunchPlan:
        alone = replace(allocation, hosts=(host,), spare=(), num_ranks=0)
        command = [rank_python(run.launch, python), "-m", "megads", "health", "--folder", str(shared)]
        extra = {TOKEN: secrets.token_hex(16)}
        found = plan_launch(run, alone, command, env, facts=facts, folder=shared, extra=extra).hiding(TOKEN)
        return replace(found, in_place=False)

    options = {
        "limit_s": STAGE_S,
        "json": True,
        "folder": str(folder.absolute()),
        "timeout_s": STAGE_S,
        "ranks_per_host": allocation.ranks_per_host,
    }
    return Probe(plan, folder, options, env)
