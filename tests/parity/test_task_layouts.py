"""Tasks in drawn layouts: losses, gradient norms, weights, accuracy and F1 are those of a plain loop on one rank."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from megads.data.tasks.examples import Example, TaskFile
from megads.data.tasks.rows import Packer, TaskRow
from megads.data.tasks.samples import FileSamples
from megads.data.tokenizers.base import Specials
from tests.engine.plain import ENGINES
from tests.pairs import pairs
from tests.parity.layouts import Layout, engine_of, rate
from tests.parity.masked_layouts import BATCH, RECOMPUTE, SIZES, is_allowed, layout_of
from tests.ranks import run_ranks

STEPS = 2
SEQ = 16
HELD_OUT = 13  # examples; no number of ranks or rows divides it
HEADS = {"classes": "2", "choices": "1"}
VALUES: dict[str, Any] = {
    "kind": ("bert", "gpt", "llama"),
    "head": tuple(HEADS),
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
    layout.more["model.num_classes"] = HEADS[case["head"]]
    return layout


# What planted bugs are caught by, whatever the seed draws.
FIXED = {
    "data": {"kind": "gpt", "head": "classes", "tp": 1, "pp": 1, "sp": 1, "dp": 2, "zero": 0, "accumulation": 2},
    "sequence": {"kind": "bert", "head": "classes", "tp": 1, "pp": 1, "sp": 2, "dp": 1, "zero": 1, "accumulation": 1},
}
DRAWN = sorted(map(_layout, pairs(VALUES, allowed=is_allowed)), key=lambda layout: layout.ranks)


class _Words:
    """A tokenizer of texts that are numbers."""

    specials = Specials(cls=1, sep=2, pad=0)

    def encode_plain(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


def _choices(layout: Layout) -> int:
    return 3 if layout.more["model.num_classes"] == "1" else 1


def examples(layout: Layout, seed: int, count: int) -> list[Example]:
    """Return examples with texts of any length, some of them too long for a sample."""
    drawn, choices = np.random.RandomState(seed), _choices(layout)

    def text() -> str:
        return " ".join(map(str, drawn.randint(3, 100, drawn.randint(1, 10))))

    def second() -> str | None:
        return text() if drawn.randint(3) else None

    return [
        Example(tuple((text(), second()) for _ in range(choices)), int(drawn.randint(choices if choices > 1 else 2)))
        for _ in range(count)
    ]


def packer(layout: Layout) -> Packer:
    return Packer(_Words(), TaskRow(SEQ, _choices(layout)))  # type: ignore[arg-type]


def rows(layout: Layout, step: int) -> Any:
    """Return the samples of a step, ``[BATCH, W]``; in the second one only the first counts, of one rank of many."""
    found = np.stack([*map(packer(layout), examples(layout, step, BATCH))])
    if step == 1:
        found[1:, -1] = -1
    return found


def _scores(model: Any, batch: Any) -> Any:
    """Return the scores of every sample, from the definition."""
    import torch

    from megads.parallel.documents import Documents, Lengths

    flat = torch.from_numpy(batch[:, :-1].reshape(-1, 2 * SEQ + 1))
    lengths = flat[:, -1]
    is_encoder = model.config.family == "bert"
    documents = Documents(lengths=Lengths(lengths, SEQ), types=flat[:, SEQ : 2 * SEQ] if is_encoder else None)
    x = flat[:, :SEQ]
    for step in model.steps(documents)[:-1]:
        x = step(x)
    x = model.final_norm(x)
    if is_encoder:
        dense = model.pooler.dense
        state = torch.tanh(x[:, 0] @ dense.weight.T + dense.bias)
    else:
        state = torch.stack([row[length - 1] for row, length in zip(x, lengths.tolist(), strict=True)])
    scores = state @ model.classifier.weight.T
    return (scores + model.classifier.bias if is_encoder else scores).view(len(batch), -1)


@cache
def one_rank(kind: str, classes: str) -> tuple[list[float], list[float], dict[str, Any], Any, Any]:
    """Return losses, norms and weights of a plain torch loop, and the scores of two sets of samples after it."""
    import torch

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model
    from tests.engine.plain import plain_optimizer

    layout = Layout(kind, more={"model.num_classes": classes})
    run = layout.run(**SIZES, **{"train.micro_batch": str(BATCH)})
    model = build_model(run, Groups(Grid(), 0))
    optimizer = plain_optimizer(model, run)
    losses, norms = [], []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        batch = rows(layout, step)
        labels = torch.from_numpy(batch[:, -1])
        counted = labels >= 0
        loss = torch.nn.functional.cross_entropy(_scores(model, batch)[counted], labels[counted])
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), run.optim.clip_grad)))
        optimizer.step()
        optimizer.zero_grad()
    held_out = np.stack([*map(packer(layout), examples(layout, STEPS, HELD_OUT))])
    with torch.no_grad():
        return losses, norms, dict(model.named_parameters()), _scores(model, rows(layout, 1)), _scores(model, held_out)


def _mine(layout: Layout, run: Any, groups: Any, step: int) -> list[Any]:
    import torch

    found = torch.from_numpy(rows(layout, step))
    blocks = found.view(run.train.grad_acc_steps, run.parallel.data, run.train.micro_batch, -1)
    return [block[groups.data_rank] for block in blocks]


def _equals_one_rank(layout: Layout) -> None:
    import torch

    from megads.parallel.tensor import take_shard

    losses, norms, weights, scores, held_out = one_rank(layout.kind, layout.more["model.num_classes"])
    engine, run, groups = engine_of(layout, **SIZES)
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
    _is_scored_as_by_one_rank(layout, engine, run, groups, held_out)


def _is_scored_as_by_one_rank(layout: Layout, engine: Any, run: Any, groups: Any, scores: Any) -> None:
    import torch

    from megads.train.task_scores import score_files

    file = TaskFile("held_out", examples(layout, STEPS, HELD_OUT))
    samples = FileSamples(file, packer(layout), run.train.micro_batch * run.parallel.data)
    classes = 2 if _choices(layout) == 1 else 0
    found = score_files(
        engine, [samples], groups, torch.device("cpu"), workers=0, has_f1=bool(classes), classes=classes
    )  # fmt: skip
    assert found is not None
    labels, predicted = np.array([example.label for example in file.examples]), scores.argmax(dim=1).numpy()
    losses = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels))
    row = found.row()
    assert row["valid_loss"] == pytest.approx(float(losses), rel=1e-4)
    assert row["valid_accuracy"] == np.mean(labels == predicted)
    if classes:
        both = np.sum((labels == 1) & (predicted == 1))
        assert row["valid_f1"] == 2 * both / (labels.sum() + predicted.sum())


@pytest.mark.dist
@pytest.mark.parametrize(
    "layout",
    [
        *(pytest.param(each, id=str(each)) for each in DRAWN),
        *(pytest.param(_layout({**case, "scatter": False, "recompute": "none"}), id=n) for n, case in FIXED.items()),
    ],
)
def test_a_task_trains_and_is_scored_like_one_rank(layout):
    run_ranks(layout.ranks, _equals_one_rank, layout)


def test_enough_is_drawn():
    assert len(DRAWN) >= 12
    assert {layout.kind for layout in DRAWN} == set(VALUES["kind"])
