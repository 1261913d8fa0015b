"""What a run would be on a machine that this host is not: nothing of this host counts."""

from __future__ import annotations

from pathlib import Path

from megads.cluster.machine import count_accelerators
from megads.config.deepspeed.dictionary import dictionary_of
from megads.config.sources.presets import read_machine
from megads.launch.job import settings_lines
from megads.launch.plan_run import hosts_of_machine, plan_run
from megads.launch.preflight.banner import banner
from megads.launch.preflight.capabilities import check_attention, check_kernels
from megads.launch.preflight.device_memory import device_memory
from megads.launch.preflight.packages import check_optimizer
from megads.launch.preflight.prediction import predict_run
from megads.launch.request import TrainRequest, resolve_request
from megads.launch.run_folder import RUNS
from megads.launch.schedulers.allocation import in_a_job, needs_accelerators
from megads.plan.memory import check_device, estimate
from megads.plan.pipeline import pipeline_lines
from megads.plan.remarks import remarks


def preview(request: TrainRequest) -> tuple[tuple[str, ...], str] | None:
    """Return notes and what ``--dry-run`` prints for a machine that trains on accelerators this host does not have.

    Memory, ranks per host and device are the machine's facts; its hosts are NHOSTS (else 1) without
    names. Data, network, disks and installed packages are not looked at. None where this host could run it, or is in a
    job.

    Raises:
        MegadsError: a rule that the settings break on that machine.
    """
    where = hosts_of_machine(request)
    asked = resolve_request(request, where.machine).run
    facts = read_machine(asked.machine, request.root).facts
    on_cpu = request.env.get("MEGADS_DEVICE") == "cpu"
    has_its_devices = count_accelerators(request.env) or not needs_accelerators(asked, facts)
    if on_cpu or in_a_job(request.env) or has_its_devices or asked.launch.hostfile:
        return None
    planned = plan_run(request, where)
    run, allocation = planned.run, planned.allocation
    if facts.device:
        check_attention(run, facts.device)
        check_kernels(run, facts.device)
        check_optimizer(run.optim.optimizer, facts.device, version=lambda module: "", built=lambda op: True)
    memory, world_size = device_memory(facts), allocation.world_size
    tight = check_device(run, world_size, run.machine, memory.gib, planned.attempt, refuse=False, kind=memory.kind)
    folder = Path(run.dir) if run.dir else RUNS / run.name
    needed = estimate(run, world_size)
    step = predict_run(run, allocation, needed, request.env, request.root).line()
    summary = banner(run, allocation, needed, 0, folder, step=step)
    note = (
        f"preview: this host is not {run.machine}; its data, network, disks and packages are not checked, and "
        "the command follows from the hosts of the job"
    )
    text = "\n".join([*settings_lines(planned.resolved, dictionary_of(run, world_size)), summary, *pipeline_lines(run)])
    return (note, *planned.resolved.notes, *([tight] if tight else []), *remarks(run, world_size)), text
