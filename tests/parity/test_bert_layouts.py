"""BERT in layouts drawn so that every two values of their axes meet: the losses, norms and weights of one rank.

Gradients in float64, without an engine: tests/models/test_bert.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.engine.plain import ENGINES
from tests.parity.layouts import VOCAB, Layout, batches, engine_of, train_on
from tests.parity.masked_layouts import (
    BATCH,
    RECOMPUTE,
    SIZES,
    STEPS,
    draw,
    of_one_rank,
    train_like_one_rank,
    whole_batch,
)
from tests.ranks import run_ranks

DEGREES = {"tp": (1, 2, 4), "pp": (1, 2), "sp": (1, 2, 4), "dp": (1, 2)}
VALUES: dict[str, Any] = {
    "kind": ("bert", "bert-original", "bert-tokens"),
    **DEGREES,
    "zero": (0, 1, 2, 3),
    "scatter": (False, True),
    "recompute": tuple(RECOMPUTE),
    "accumulation": (1, 2),
    "engine": ENGINES,
}


DRAWN = draw(VALUES)


def test_the_layouts_hold_every_two_values():
    assert len(DRAWN) >= 24
    assert {layout.ranks for layout in DRAWN} == {2, 4}


@cache
def _held_out(kind: str) -> Any:
    """Return sums and counts of every sample's losses after :data:`STEPS` on one rank."""
    import torch
    from torch.nn.functional import cross_entropy

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.data.samples.masked.rows import BertRow
    from megads.models.build import build_model
    from megads.parallel.documents import Documents, Lengths

    run = whole_batch(kind).run(**SIZES)
    model = build_model(run, Groups(Grid(), 0))
    model.load_state_dict(of_one_rank(kind)[2])
    (batch,) = batches(run, STEPS, 0)
    row = BertRow(run.model.seq_length)
    documents = Documents(lengths=Lengths(batch[:, row.length], row.seq_length), types=batch[:, row.types])
    with torch.no_grad():
        outputs = model(batch[:, row.text], documents=documents)
        logits, exchanged = outputs if run.model.binary_head else (outputs, None)
        labels = batch[:, row.labels]
        words = cross_entropy(logits[..., :VOCAB].transpose(1, 2), labels, ignore_index=-1, reduction="none")
        columns = [words.sum(dim=1), (labels >= 0).sum(dim=1)]
        if exchanged is not None:
            columns += [cross_entropy(exchanged, batch[:, row.is_random], reduction="none"), torch.ones(BATCH)]
    return torch.stack(columns, dim=1)


def _equals_one_rank(layout: Layout) -> None:
    run, results = train_like_one_rank(layout, _held_out(layout.kind))
    names = ("lm_loss", "sop_loss") if run.model.binary_head else ()
    assert all(tuple(r.losses) == names for r in results)
    for result in results if names else ():
        assert float(sum(result.losses.values())) == pytest.approx(float(result.loss), rel=1e-6)
        assert float(result.losses["lm_loss"]) > 2 * float(result.losses["sop_loss"]) > 0


@pytest.mark.dist
@pytest.mark.parametrize("layout", DRAWN, ids=str)
def test_a_layout_trains_like_one_rank(layout):
    run_ranks(layout.ranks, _equals_one_rank, layout)


def _terms(layout: Layout) -> list[dict[str, float]]:
    engine, run, groups = engine_of(layout, **SIZES)
    results = train_on(engine, run, groups, range(STEPS))
    return [{name: float(each) for name, each in result.losses.items()} for result in results]


def _terms_equal_one_ranks(layout: Layout, expected: list[dict[str, float]]) -> None:
    for found, wanted in zip(_terms(layout), expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)


def _keep_terms(path: str) -> None:
    import json
    from pathlib import Path

    Path(path).write_text(json.dumps(_terms(whole_batch("bert"))))


@pytest.mark.dist
@pytest.mark.parametrize(
    "layout",
    [Layout("bert", sp=2, dp=2, zero=2), Layout("bert", pp=2, tp=2, more={"parallel.scatter_norms": "true"})],
    ids=str,
)
def test_each_term_of_the_loss_is_that_of_one_rank(layout, tmp_path):
    """Their sum, which the other tests compare, does not show which is which."""
    import json

    run_ranks(1, _keep_terms, str(tmp_path / "terms"))
    run_ranks(layout.ranks, _terms_equal_one_ranks, layout, json.loads((tmp_path / "terms").read_text()))
