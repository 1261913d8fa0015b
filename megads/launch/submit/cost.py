"""What a run will cost, in one line before its job is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from megads.config.schema import RunConfig
from megads.config.sources.presets import read_machine
from megads.errors import ConfigError
from megads.launch.preflight.prediction import predict_run
from megads.launch.schedulers.allocation import Allocation
from megads.plan.costs.cost import cost
from megads.plan.memory import estimate
from megads.plan.places.place import place_of
from megads.text.plural import plural
from megads.text.units import count, duration, size


def cost_line(
    run: RunConfig, allocation: Allocation, nodes: int, seconds: float, chain: int, env: Mapping[str, str], root: Path
) -> str:
    """Return host-hours, jobs, energy, CO2 and checkpoints of a derived run.

    Where nothing is known of the machine's devices, that is what the jobs may use at most.

    Args:
        allocation: the hosts that train.
        nodes: hosts of each job, spare ones included.
        seconds: the longest that a job may take.
        chain: jobs that are submitted.
    """
    most = nodes * chain * seconds / 3600
    asked = f"{plural(chain, 'job')} of {plural(nodes, 'host')} x {duration(seconds)}: at most {most:.4g} host-hours"
    if not read_machine(run.machine, root).facts.plan.accelerator:
        return f"cost     {asked}; how long the run takes is not known on machine {run.machine}"
    predicted = predict_run(run, allocation, estimate(run, allocation.world_size), env, root)
    if not predicted.step_s or run.train.train_iters < 1:
        return f"cost     {asked}; how long the run takes is not known"
    hosts, ranks = len(allocation.hosts), allocation.world_size
    try:
        found = cost(run, place_of(run.machine, root=root), hosts, ranks, predicted.step_s, seconds / 3600).campaign
    except ConfigError as error:
        return f"cost     {asked}; {error}"
    parts = [f"the run takes about {duration(found.total_s)} in {plural(found.jobs, 'job')}"]
    parts.append(f"{found.node_hours:.4g} host-hours")
    if found.kwh is not None:
        parts.append(f"{count(found.kwh)} kWh" + (f", {count(found.co2_kg)} kg CO2" if found.co2_kg else ""))
    if found.save_bytes:
        parts.append(f"checkpoints of {size(found.save_bytes)}, {size(found.kept_bytes)} kept")
    more = f"; --chain {found.jobs} submits all of them" if found.jobs > chain else ""
    return f"cost     {asked}; {', '.join(parts)}{more}"
