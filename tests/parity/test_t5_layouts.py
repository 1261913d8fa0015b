"""T5 in layouts drawn so that every two values of their axes meet: the losses, norms and weights of one rank.

Gradients in float64, without an engine: tests/models/test_t5.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.engine.plain import ENGINES
from tests.parity.layouts import VOCAB, Layout, batches
from tests.parity.masked_layouts import (
    RECOMPUTE,
    SIZES,
    STEPS,
    draw,
    of_one_rank,
    train_like_one_rank,
    whole_batch,
)
from tests.ranks import run_ranks

DEGREES = {"tp": (1, 2, 4), "pp": (1, 2, 4), "sp": (1, 2), "dp": (1, 2)}
RECOMPUTE_OF_T5 = RECOMPUTE | {"full": {"recompute.granularity": "full", "recompute.num_layers": "2"}}
VALUES: dict[str, Any] = {
    "kind": ("t5", "t5-v1.1", "t5-v1.0"),
    **DEGREES,
    "zero": (0, 1, 2, 3),
    "scatter": (False, True),
    "recompute": tuple(RECOMPUTE),
    "accumulation": (1, 2),
    "engine": ENGINES,
}

DRAWN = draw(VALUES, RECOMPUTE_OF_T5)


def test_the_layouts_hold_every_two_values():
    assert len({str(layout) for layout in DRAWN}) >= 24
    assert {layout.ranks for layout in DRAWN} == {2, 4}


@cache
def _held_out(kind: str) -> Any:
    """Return sums and counts of every sample's losses after :data:`STEPS` on one rank."""
    import torch
    from torch.nn.functional import cross_entropy

    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.data.samples.masked.rows import T5Row
    from megads.models.build import build_model
    from megads.parallel.documents import Documents, Lengths

    run = whole_batch(kind).run(**SIZES)
    model = build_model(run, Groups(Grid(), 0))
    model.load_state_dict(of_one_rank(kind)[2])
    (batch,) = batches(run, STEPS, 0)
    row = T5Row(run.model.seq_length, run.model.decoder_seq_length)
    with torch.no_grad():
        documents = Documents(lengths=Lengths(batch[:, row.length_enc], row.encoder_length))
        logits, labels = model(batch[:, : row.labels.start], documents=documents), batch[:, row.labels]
        words = cross_entropy(logits[..., :VOCAB].transpose(1, 2), labels, ignore_index=-1, reduction="none")
    return torch.stack([words.sum(dim=1), (labels >= 0).sum(dim=1)], dim=1)


def _equals_one_rank(layout: Layout) -> None:
    train_like_one_rank(layout, _held_out(layout.kind))


@pytest.mark.dist
@pytest.mark.parametrize("layout", DRAWN, ids=str)
def test_a_layout_trains_like_one_rank(layout):
    run_ranks(layout.ranks, _equals_one_rank, layout)
