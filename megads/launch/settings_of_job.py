"""The settings of a run before it starts: for what can be made while its job waits."""

from __future__ import annotations

from megads.config.deepspeed.dictionary import SETTING_OF
from megads.config.deepspeed.overrides import adopt
from megads.config.derive import derive
from megads.config.rules.checks import check
from megads.config.schema import RunConfig
from megads.config.sources.presets import read_machine
from megads.launch.plan_run import resolve_here
from megads.launch.request import TrainRequest, resolve_ask
from megads.launch.schedulers.allocation import find_allocation
from megads.launch.submit.job_script import find_place
from megads.launch.submit.training import ranks_of_host, submit_machine


def run_ahead(ask: TrainRequest, nodes: int) -> RunConfig:
    """Return the derived settings of the run that ``ask`` would start.

    Args:
        ask: as for training.
        nodes: hosts of the job it will run in, 0: it will run here, on the hosts that are there now.

    Raises:
        MegadsError: the first rule that the settings break.
    """
    from megads.data.tokenizers.of_run import vocab_size_of

    if nodes:
        machine = submit_machine(ask)
        asked = resolve_ask(ask, machine, nodes)
        hosts = asked.run.launch.num_hosts or nodes
        per_host = ranks_of_host(asked.run, find_place(asked.run.machine, ask.root, ask.env), hosts, ask.env)
    else:
        asked = resolve_here(ask)
        allocation = find_allocation(asked.run, ask.env, read_machine(asked.run.machine, ask.root).facts)
        hosts, per_host = len(allocation.hosts), allocation.ranks_per_host
    vocab = vocab_size_of(asked.run)
    resolved = adopt(derive(asked, num_hosts=hosts, ranks_per_host=per_host, vocab_size=vocab), SETTING_OF)
    check(resolved.run, hosts * per_host)
    return resolved.run
