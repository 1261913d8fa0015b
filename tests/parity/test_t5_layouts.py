"""T5 in layouts drawn so that every two values of their axes meet: the losses, norms and weights of one rank.

Gradients in float64, without an engine: tests/models/test_t5.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.pairs import SEED, pairs
from tests.parity.layouts import SAMPLES, VOCAB, Layout, batches, engine_of, one_rank_and_weights, train_on
from tests.parity.masked_layouts import RECOMPUTE, is_allowed, layout_of
from tests.ranks import run_ranks

STEPS = 2
COUNT = 25
DEGREES = {"tp": (1, 2, 4), "pp": (1, 2, 4), "sp": (1, 2), "dp": (1, 2)}
RECOMPUTE_OF_T5 = RECOMPUTE | {"full": {"recompute.granularity": "full", "recompute.num_layers": "2"}}
VALUES: dict[str, Any] = {
    "kind": ("t5", "t5-v1.1", "t5-v1.0"),
    **DEGREES,
    "zero": (0, 1, 2, 3),
    "scatter": (False, True),
    "recompute": tuple(RECOMPUTE),
    "micro_batch": (1, 2, 4),
}


# The first set has every two values; of a second one as many as make the number whole.
CASES = [*pairs(VALUES, allowed=is_allowed), *pairs(VALUES, allowed=is_allowed, seed=SEED + 1)]
DRAWN = sorted(
    dict.fromkeys(layout_of(case, RECOMPUTE_OF_T5) for case in CASES[:COUNT]), key=lambda layout: layout.ranks
)
# Every third: each form of the model, each degree and each ZeRO stage; the others in the long matrix.
QUICK = DRAWN[::3]
LAYERS = "2"  # of the encoder, and as many of the decoder


def test_the_layouts_hold_every_two_values():
    assert len(pairs(VALUES, allowed=is_allowed)) <= COUNT
    assert len({str(layout) for layout in DRAWN}) >= 24
    assert {layout.ranks for layout in DRAWN} == {2, 4}
    assert {each.kind for each in QUICK} == set(VALUES["kind"])
    assert {each.zero for each in QUICK} == {0, 1, 2, 3}
    assert all(max(getattr(each, axis) for each in QUICK) > 1 for axis in DEGREES)


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

    run = Layout(kind).run(**{"train.micro_batch": str(SAMPLES), "model.num_layers": LAYERS})
    model = build_model(run, Groups(Grid(), 0))
    model.load_state_dict(one_rank_and_weights(kind, steps=STEPS, layers=LAYERS)[2])
    (batch,) = batches(run, STEPS, 0)
    row = T5Row(run.model.seq_length, run.model.decoder_seq_length)
    with torch.no_grad():
        documents = Documents(lengths=Lengths(batch[:, row.length_enc], row.encoder_length))
        logits, labels = model(batch[:, : row.labels.start], documents=documents), batch[:, row.labels]
        words = cross_entropy(logits[..., :VOCAB].transpose(1, 2), labels, ignore_index=-1, reduction="none")
    return torch.stack([words.sum(dim=1), (labels >= 0).sum(dim=1)], dim=1)


def _equals_one_rank(layout: Layout) -> None:
    import torch

    from megads.parallel.tensor import take_shard

    losses, norms, weights = one_rank_and_weights(layout.kind, steps=STEPS, layers=LAYERS)
    engine, run, groups = engine_of(layout, **{"model.num_layers": LAYERS})
    results = train_on(engine, run, groups, range(STEPS))
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    for state in engine.state.by_parameter():
        wanted = take_shard(weights[state.name].detach(), state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], wanted, rtol=1e-4, atol=2e-6)
    found = engine.eval_losses(batches(run, STEPS, groups.data_rank))
    torch.testing.assert_close(found, _held_out(layout.kind), rtol=1e-4, atol=1e-4)


@pytest.mark.dist
@pytest.mark.parametrize(
    "layout",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow, id=str(each)) for each in DRAWN],
)
def test_a_layout_trains_like_one_rank(layout):
    run_ranks(layout.ranks, _equals_one_rank, layout)
