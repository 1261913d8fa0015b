"""A task in every layout: losses, gradient norms, weights and scores are those of a plain loop on one rank."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from megads.data.tasks.rows import TaskRow
from tests.parity.layouts import SAMPLES, STEPS, Layout, engine_of, rate
from tests.ranks import run_ranks

CLASSES = {"model.num_classes": "3"}
CHOICES = {"model.num_classes": "1"}
BERT = {
    "model.family": "bert",
    "model.hidden_dropout": "0",
    "model.attention_dropout": "0",
    "model.ffn_hidden_size": "64",
}
SCATTER = {"parallel.scatter_norms": "true"}
PARTITIONED = {"deepspeed.param_persistence_threshold": "0"}
LAYOUTS = [
    Layout("gpt", sp=2, dp=2, more=CLASSES),
    Layout("gpt", tp=2, sp=2, more={**SCATTER, **CHOICES}),
    Layout("llama", pp=2, dp=2, more=CHOICES),
    Layout("llama", dp=2, zero=3, more={**PARTITIONED, **CLASSES}),
    Layout("gpt", pp=2, tp=2, zero=1, more={**SCATTER, **CLASSES}),
    Layout("llama", tp=2, sp=2, zero=2, more={**BERT, **SCATTER, **CLASSES}),
    Layout("llama", pp=2, sp=2, more={**BERT, **CHOICES}),
]


def _choices(layout: Layout) -> int:
    return 2 if layout.more["model.num_classes"] == "1" else 1


def rows(layout: Layout, step: int) -> Any:
    """Return the samples of a step, ``[SAMPLES, W]``; texts of any length, and in a step one that does not count."""
    drawn, size, choices = np.random.RandomState(step), 16, _choices(layout)
    row = TaskRow(size, choices)
    found = np.zeros((SAMPLES, row.width), np.int64)
    for sample in found:
        for choice in range(choices):
            length, at = drawn.randint(1, size + 1), choice * row.part
            sample[at : at + length] = drawn.randint(1, 100, length)
            sample[at + size + length // 2 : at + size + length] = 1
            sample[at + 2 * size] = length
        sample[-1] = drawn.randint(0, 3 if choices == 1 else choices)
    if step == 1:
        found[3, -1] = -1
    return found


def _scores(model: Any, batch: Any, choices: int) -> Any:
    """Return the scores of every sample, from the definition."""
    import torch

    from megads.parallel.documents import Documents, Lengths

    flat = torch.from_numpy(batch[:, :-1].reshape(-1, 33))
    lengths = flat[:, -1]
    is_encoder = model.config.family == "bert"
    documents = Documents(lengths=Lengths(lengths, 16), types=flat[:, 16:32] if is_encoder else None)
    x = flat[:, :16]
    for step in model.steps(documents)[:-1]:
        x = step(x)
    x = model.final_norm(x)
    if is_encoder:
        dense = model.pooler.dense
        state = torch.tanh(x[:, 0] @ dense.weight.T + dense.bias)
    else:
        state = torch.stack([row[length - 1] for row, length in zip(x, lengths.tolist(), strict=True)])
    return (state @ model.classifier.weight.T + model.classifier.bias).view(len(batch), -1)


@cache
def one_rank(layout: Layout, more: tuple[tuple[str, str], ...]) -> tuple[list[float], list[float], dict[str, Any], Any]:
    """Return losses, norms and weights of a plain torch loop, and the scores of the first samples after it."""
    import torch

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model
    from tests.engine.plain import plain_optimizer

    alone = {key: value for key, value in more if not key.startswith(("parallel", "deepspeed"))}
    run = Layout(layout.kind, more=alone).run(**{"train.micro_batch": str(SAMPLES)})
    model = build_model(run, Groups(Grid(), 0))
    optimizer = plain_optimizer(model, run)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        batch = rows(layout, step)
        labels = torch.from_numpy(batch[:, -1])
        counted = labels >= 0
        loss = torch.nn.functional.cross_entropy(_scores(model, batch, _choices(layout))[counted], labels[counted])
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip_grad)))
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        scores = _scores(model, rows(layout, 1), _choices(layout))
    return losses, norms, dict(model.named_parameters()), scores


def _mine(layout: Layout, run: Any, groups: Any, step: int) -> list[Any]:
    import torch

    found = torch.from_numpy(rows(layout, step))
    blocks = found.view(run.train.grad_acc_steps, run.parallel.data, run.train.micro_batch, -1)
    return [block[groups.data_rank] for block in blocks]


def _equals_one_rank(layout: Layout) -> None:
    import torch

    from megads.parallel.tensor import take_shard

    losses, norms, weights, scores = one_rank(layout, tuple(layout.more.items()))
    engine, run, groups = engine_of(layout)
    results = [engine.train_step(_mine(layout, run, groups, step), rate(step)) for step in range(STEPS)]
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    for state in engine.state.by_parameter():
        if state.name == "classifier.bias" and _choices(layout) > 1:
            continue  # all choices have it, so its gradient is 0 but for rounding, which Adam makes a step of
        whole = weights[state.name].detach()
        wanted = take_shard(whole, state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], wanted, rtol=1e-4, atol=2e-6)
    found = engine.eval_losses(_mine(layout, run, groups, 1))
    labels = torch.from_numpy(rows(layout, 1)[:, -1])
    counted = labels >= 0
    wanted = torch.nn.functional.cross_entropy(scores, labels.clamp(min=0), reduction="none")
    torch.testing.assert_close(found[:, 0], wanted * counted, rtol=1e-4, atol=1e-5)
    assert found[:, 1].tolist() == counted.float().tolist()
    assert found[:, 2].tolist() == (scores.argmax(dim=1) * counted).float().tolist()


@pytest.mark.dist
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_task_trains_like_one_rank_in_every_layout(layout):
    run_ranks(layout.ranks, _equals_one_rank, layout)
