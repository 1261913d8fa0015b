"""What a run would be on a machine that this host is not: nothing of this host counts."""

from __future__ import annotations

from pathlib import Path

from megads.cluster.machine import count_accelerators, machine_name
from megads.config.deepspeed.dictionary import SETTING_OF, deepspeed_config
from megads.config.deepspeed.overrides import adopt
from megads.config.derive import attempts, derive
from megads.config.estimate.memory import check_device, estimate
from megads.config.machine_facts import Facts
from megads.config.rules.checks import check
from megads.config.rules.remarks import remarks
from megads.config.schema import RunConfig
from megads.config.sources.presets import read_machine
from megads.errors import DeviceError
from megads.launch.plan_run import settings_lines
from megads.launch.preflight.banner import banner
from megads.launch.preflight.device_memory import device_memory
from megads.launch.preflight.optimizer_packages import check_optimizer
from megads.launch.request import TrainRequest, resolve_ask
from megads.launch.run_folder import RUNS
from megads.launch.schedulers.allocation import Allocation, host_ranks, in_a_job, needs_accelerators

FLASH = ("nvidia", "amd")


def preview(ask: TrainRequest) -> tuple[tuple[str, ...], str] | None:
    """Return notes and what ``--dry-run`` prints for a machine that trains on accelerators this host does not have.

    Memory, ranks per host and device are the machine's facts; its hosts are NHOSTS (else 1) without
    names. Data, network, disks and installed packages are not looked at. None where this host could run it, or is in a
    job.

    Raises:
        MegadsError: a rule that the settings break on that machine.
    """
    machine = machine_name(ask.hostname, ask.env, ask.root)
    facts = read_machine(machine, ask.root).facts
    asked = resolve_ask(ask, machine, 0)
    facts = facts if asked.run.machine == machine else read_machine(asked.run.machine, ask.root).facts
    on_cpu = ask.env.get("MEGADS_DEVICE") == "cpu"
    if on_cpu or in_a_job(ask.env) or count_accelerators(ask.env) or not needs_accelerators(asked.run, facts):
        return None
    if asked.run.launch.hostfile:
        return None
    from megads.data.tokenizers.of_run import vocab_size_of

    hosts, vocab = asked.run.launch.num_hosts or 1, vocab_size_of(asked.run)

    def ranks_of(run: RunConfig) -> tuple[int, int]:
        return hosts, host_ranks(run, facts, hosts)

    per_host = ranks_of(asked.run)[1]
    derived = derive(asked, num_hosts=hosts, ranks_per_host=per_host, vocab_size=vocab, ranks_of=ranks_of)
    resolved = adopt(derived, SETTING_OF)
    attempt = attempts(asked, ranks_of, vocab, lambda other: adopt(other, SETTING_OF))
    run, world_size = resolved.run, hosts * per_host
    check(run, world_size, attempt)
    _check_device_can(run, facts)
    memory = device_memory(facts)
    tight = check_device(run, world_size, run.machine, memory.gib, attempt, refuse=False, kind=memory.kind)
    names = tuple(f"host{number}" for number in range(1, hosts + 1))
    folder = Path(run.dir) if run.dir else RUNS / run.name
    summary = banner(run, Allocation(facts.scheduler, names, per_host), estimate(run, world_size), 0, folder)
    note = (
        f"preview: this host is not {run.machine}; its data, network, disks and packages are not checked, and "
        "the command follows from the hosts of the job"
    )
    text = "\n".join([*settings_lines(resolved, deepspeed_config(run, world_size)), summary])
    return (note, *resolved.notes, *([tight] if tight else []), *remarks(run, world_size)), text


def _check_device_can(run: RunConfig, facts: Facts) -> None:
    """Refuse what the machine's device cannot do.

    Raises:
        DeviceError: the attention or the optimizer does not run there.
    """
    if not facts.device:
        return
    if run.model.attention == "flash" and facts.device not in FLASH:
        raise DeviceError(
            f"ATTENTION=flash works on nvidia and amd devices, not on {facts.device}; "
            "use ATTENTION=sdpa (NO_FLASH_ATTN=1)"
        )
    check_optimizer(run.optim.optimizer, facts.device, version=lambda module: "", built=lambda op: True)
