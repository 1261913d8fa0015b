"""Packed chats in drawn layouts: losses, gradient norms and weights are those of each chat alone, in a plain loop."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from megads.data.chat.packing import pack
from megads.data.chat.rows import ChatRow
from tests.engine.plain import ENGINES
from tests.pairs import pairs
from tests.parity.layouts import VOCAB, Layout, engine_of, rate
from tests.parity.masked_layouts import BATCH, RECOMPUTE, SIZES, is_allowed, layout_of
from tests.ranks import run_ranks

STEPS = 2
SEQ = 16
CHAT = {"finetune.task": "chat", "data.reset_attention_mask": "true", "data.reset_position_ids": "true"}
VALUES: dict[str, Any] = {
    "kind": ("gpt", "llama"),
    "tp": (1, 2),
    "pp": (1, 2),
    "sp": (1, 2),
    "dp": (1, 2),
    "zero": (0, 1, 2, 3),
    "scatter": (False, True),
    "recompute": tuple(RECOMPUTE),
    "accumulation": (1, 2),
    "engine": ENGINES,
}


def _layout(case: dict[str, Any]) -> Layout:
    layout = layout_of(case)
    layout.more.update(CHAT)
    return layout


DRAWN = sorted(map(_layout, pairs(VALUES, allowed=is_allowed)), key=lambda layout: layout.ranks)


def examples(step: int) -> list[tuple[Any, Any]]:
    """Return the chats of a step; of the second step they fill less than half of the rows, so whole ranks have none."""
    drawn, found = np.random.default_rng(step), []
    for length in drawn.integers(2, 9, 9 if step == 0 else 3):
        labels = np.where(drawn.random(length) < 0.4, drawn.integers(1, VOCAB, length), -1)
        labels[-1] = 1
        found.append((drawn.integers(1, VOCAB, length), labels))
    return found


def rows(step: int) -> Any:
    """Return the packed chats of a step, ``[BATCH, W]``."""
    given, row = examples(step), ChatRow(SEQ)
    packed = pack([len(tokens) for tokens, _ in given], SEQ, np.random.default_rng(0))
    assert len(packed) <= BATCH
    return np.stack([row.make([given[i] for i in numbers]) for numbers in [*packed, *[[]] * (BATCH - len(packed))]])


@cache
def one_rank(kind: str) -> tuple[list[float], list[float], dict[str, Any], tuple[float, int]]:
    """Return losses, norms and weights of a plain loop over chats alone, and the loss of a step's chats after it."""
    import torch

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model
    from tests.engine.plain import plain_optimizer

    run = Layout(kind).run(**SIZES, **{"train.micro_batch": str(BATCH)})
    model = build_model(run, Groups(Grid(), 0))
    optimizer = plain_optimizer(model, run)

    def summed(step: int) -> tuple[Any, int]:
        total: Any = 0.0
        for tokens, labels in examples(step):
            logits = model(torch.from_numpy(tokens)[None])[0, :, :VOCAB]
            total += torch.nn.functional.cross_entropy(
                logits, torch.from_numpy(labels), ignore_index=-1, reduction="sum"
            )
        return total, sum(int((labels >= 0).sum()) for _, labels in examples(step))

    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        total, count = summed(step)
        loss = total / count
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip_grad)))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        held_out = summed(0)
    return losses, norms, dict(model.named_parameters()), (float(held_out[0]), held_out[1])


def mine_of(run: Any, groups: Any, step: int) -> list[Any]:
    import torch

    blocks = torch.from_numpy(rows(step)).view(run.train.grad_acc_steps, run.parallel.data, run.train.micro_batch, -1)
    return [block[groups.data_rank] for block in blocks]


def _equals_one_rank(layout: Layout) -> None:
    import torch

    from megads.parallel.tensor import take_shard

    losses, norms, weights, (held_out, count) = one_rank(layout.kind)
    engine, run, groups = engine_of(layout, **SIZES)
    results = [engine.train_step(mine_of(run, groups, step), rate(step)) for step in range(STEPS)]
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    for state in engine.state.by_parameter():
        wanted = take_shard(weights[state.name].detach(), state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], wanted, rtol=1e-4, atol=2e-6)
    found = engine.eval_losses(mine_of(run, groups, 0)).sum(0)
    assert float(found[0]) == pytest.approx(held_out, rel=1e-5)
    assert int(found[1]) == count


@pytest.mark.dist
@pytest.mark.parametrize("layout", DRAWN, ids=str)
def test_packed_chats_train_like_chats_alone_on_one_rank(layout):
    run_ranks(layout.ranks, _equals_one_rank, layout)


def test_enough_is_drawn():
    assert len(DRAWN) >= 10
    assert {layout.kind for layout in DRAWN} == set(VALUES["kind"])
