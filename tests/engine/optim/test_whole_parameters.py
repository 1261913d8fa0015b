"""How whole parameters are shared out, gathered and sent back."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch

from megads.engine.optim.whole_parameters import rounds, share_out
from megads.plan.parts.whole_parameters import WORK_BYTES
from tests.parity.layouts import Layout, batches, engine_of
from tests.ranks import groups_of, run_ranks


def test_owners_have_about_as_many_numbers():
    sizes = [100, 7, 60, 50, 40, 30, 9, 4]
    owners = share_out(sizes, 3)
    loads = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == member) for member in range(3)]
    assert sum(loads) == sum(sizes)
    assert max(loads) - min(loads) <= 10
    assert share_out([5, 5], 4) == [0, 1], "two of four own nothing"


def test_an_owner_gathers_no_more_than_it_may_at_once():
    sizes, owners = [30, 30, 50, 90, 10, 200, 5], [0, 1, 0, 0, 1, 1, 0]
    found = rounds(sizes, owners, 80)
    assert sorted(place for each in found for place, _ in each) == list(range(7))
    for each in found:
        for owner in (0, 1):
            mine = [sizes[place] for place, who in each if who == owner]
            assert sum(mine) <= 80 or len(mine) == 1
    assert len(rounds(sizes, owners, 1)) == 4, "one after another"
    assert len(rounds(sizes, owners, 10**6)) == 1


def trains_with_more_ranks_than_parameters_in_a_round(name: str) -> None:
    """The last round of many has a parameter for one rank only, and others own none in it."""
    from megads.engine.optim import whole_parameters
    from tests.engine.scripted import SMALL

    whole_parameters.AT_ONCE = 1
    losses = []
    for more in ({}, {"optim.optimizer": name, "optim.muon_ns_steps": "2"}):
        engine, run, groups = engine_of(Layout(dp=4, zero=2, more={"train.micro_batch": "1"}), **SMALL, **more)
        losses += [float(engine.train_step(batches(run, 0, groups.data_rank), 1e-3).loss) for _ in range(3)]
    assert losses[0] == losses[3]
    assert losses[5] < losses[4] < losses[3]


@pytest.mark.parametrize("name", ["muon", "lamb"])
def test_a_rank_may_own_nothing_of_a_round(name):
    run_ranks(4, trains_with_more_ranks_than_parameters_in_a_round, name, timeout_s=300)


FROZEN = ("layers.0.mlp.down.weight", "final_norm.weight")


def leaves_what_is_frozen(zero: str) -> None:
    from megads.engine.deepspeed.engine import DeepSpeedEngine
    from megads.models.build import build_model
    from tests.engine.plain import let_fp16_run
    from tests.engine.scripted import SMALL

    let_fp16_run()
    layout = Layout(dp=2, zero=int(zero), more={"optim.optimizer": "muon"})
    run, groups = layout.run(**SMALL), groups_of(**layout.degrees)
    module = build_model(run, groups)
    for name in FROZEN:
        module.get_parameter(name).requires_grad_(False)
    before = {name: weight.detach().clone() for name, weight in module.named_parameters()}
    engine = DeepSpeedEngine(module, run, groups, torch.device("cpu"))
    for step in range(2):
        engine.train_step(batches(run, step, groups.data_rank), 1e-3)
    for name, weight in module.named_parameters():
        assert torch.equal(weight.detach(), before[name]) == (name in FROZEN), name
    assert {state.name for state in engine.state.by_parameter()} == set(before) - set(FROZEN)


@pytest.mark.parametrize("zero", ["0", "1"])
def test_frozen_parameters_stay(zero):
    run_ranks(2, leaves_what_is_frozen, zero, timeout_s=300)


SIDE = 4096
"""So large that what is freed goes back to the system at once."""


def _resident() -> int:
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def holds_what_the_estimate_says(is_split: bool) -> None:
    """Each of two ranks owns one matrix, and holds half of both: a slice, or a run of ZeRO's."""
    from megads.engine.optim.exchange import Slot, Team
    from megads.engine.optim.whole_parameters import Call, WholeOptimizer
    from megads.parallel.tensor import Shard

    groups = groups_of(tensor=2) if is_split else groups_of(data=2)
    team = Team.of(groups, torch.device("cpu"), None)
    slots = []
    for name in ("a", "b"):
        parameter = torch.nn.Parameter(torch.zeros(SIDE // 2 if is_split else SIDE, SIDE))
        if is_split:
            parameter.shard = Shard(0, (SIDE,))
        run = parameter.data.view(-1)[: SIDE * SIDE // 2]
        gradient = torch.ones_like(run)
        first = 0 if is_split else team.me * run.numel()
        slots.append(Slot(name, parameter, parameter.shape, first, run, lambda gradient=gradient: gradient))
    key = torch.zeros(1)
    make = {"others": lambda groups: torch.optim.SGD(groups, lr=0.1)}
    optimizer = WholeOptimizer([{"params": [key], "label": "others"}], make, {}, 0.1)
    optimizer.attach(team, [Call(key, "others", slots)], None)
    optimizer.step()
    before, peak, is_done = _resident(), [0], threading.Event()

    def watch() -> None:
        while not is_done.is_set():
            peak[0] = max(peak[0], _resident())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(3):
        optimizer.step()
    is_done.set()
    watcher.join()
    assert 8 < (peak[0] - before) / SIDE**2 <= WORK_BYTES
    # Nothing is kept from step to step but the state, and everything has arrived.
    assert _resident() - before < 4 * SIDE**2
    for slot in slots:
        assert torch.allclose(slot.weight, torch.tensor(-0.4))


@pytest.mark.slow
@pytest.mark.parametrize("is_split", [False, True])
def test_a_step_takes_no_more_memory_than_the_estimate(is_split):
    """Measured: 16 bytes for each number that is owned where runs are gathered, 20 where slices are; SGD adds none."""
    run_ranks(2, holds_what_the_estimate_says, is_split, timeout_s=120)
