"""Faults of hosts: the real restarts, checks and memory of nodes; ranks and hosts are scripts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks.faults.kinds import Fault
from benchmarks.faults.tally import Result
from megads.errors import ConfigError
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.nodes.memory import NodeMemory
from megads.launch.nodes.probe import Probe
from megads.launch.preflight.checkpoint_start import Saved
from megads.launch.schedulers.allocation import Allocation
from megads.launch.supervise import restart
from megads.launch.supervise.restart import Restarts
from megads.monitor.check_stages import RECORD, Finding, Verdict

_PYTHON = (sys.executable, "-I", "-S", "-c")
_RANK = """
import json, os, sys
folder, saved, outcome, code = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
os.makedirs(f"{folder}/checkpoints/iter_{int(saved):07d}", exist_ok=True)
if outcome:
    open(f"{folder}/outcome.json", "w").write(outcome)
os._exit(code)
"""
_CHECK = """
import sys
open(sys.argv[1], "w").write(sys.argv[2])
"""


def run_simulated(fault: Fault, folder: Path) -> Result:
    """Have a simulated run suffer a fault."""
    (folder / "checkpoints").mkdir(parents=True)
    fails = [*fault.blames]

    def plan(allocation: Allocation, attempt: int) -> LaunchPlan:
        """An attempt fails while a broken host is in it, or somebody is still to be named."""
        is_hit = bool({*fault.broken} & {*allocation.hosts})
        named = fails.pop(0) if fails else (fault.broken[0] if is_hit else None)
        outcome, code = _end(fault, named) if named is not None else ({"exit_code": 0, "kind": "done"}, 0)
        words = json.dumps({"message": "", "iteration": 10 * (attempt + 1), **outcome}) if outcome else ""
        argv = (*_PYTHON, _RANK, str(folder), str(10 * (attempt + 1)), words, str(code))
        return LaunchPlan(argv, {"MEGADS_ENDS_AT": "4102444800"})

    def check(host: str, shared: Path) -> LaunchPlan:
        is_ill = host in fault.broken or fault.action == "all"
        stage = Finding("devices", Verdict("failed" if is_ill else "ok", "of 4 devices"), 0.1).as_dict()
        return LaunchPlan((*_PYTHON, _CHECK, str(shared / RECORD), json.dumps(stage) + "\n"), {})

    def shrink(allocation: Allocation) -> str:
        raise ConfigError("3 hosts do not share out the batch")

    job = Restarts(
        folder,
        Saved(folder / "checkpoints"),
        os.environ,
        Allocation("none", ("n1", "n2", "n3", "n4"), 1, spare=("n5", "n6")),
        plan=plan,
        shrink=shrink,
        max_restarts=5,
        answers=lambda host: host not in fault.down,
        probe=Probe(check, folder, {}, os.environ).check,
        memory=NodeMemory(folder / "nodes.jsonl", "simulated"),
    )
    before, restart.WAIT_S = restart.WAIT_S, 0.02
    try:
        code = job.run()
    finally:
        restart.WAIT_S = before
    excluded = tuple(host for each in job.past for host in each.excluded)
    found = [each for each in job.past if each.exit_code]
    return Result(
        fault.kind,
        causes=tuple(each.cause for each in found) or ("",),
        verdict=found[-1].verdict if found else "",
        recovered=code == 0,
        excluded=tuple(host for host in excluded if host not in fault.broken),
        code=code,
    )


def _end(fault: Fault, named: str) -> tuple[dict[str, object], int]:
    if fault.value == "143":
        return {}, 143
    if fault.value == "lost":
        if not named:
            return {}, 1
        message = f"rank 0 host n9: lost another rank on {named}: Connection closed by peer"
        return {"exit_code": 1, "kind": "lost", "host": named, "message": message}, 1
    kind = "killed" if "signal" in fault.value else "error"
    return {"exit_code": 1, "kind": kind, "rank": 3, "host": named, "message": f"rank 3 host {named}: {fault.value}"}, 1
