"""What the drawn layouts of BERT and T5 share: which can be, what they train, and that it is as on one rank.

Ten steps of four samples, in one micro-batch or two: more of either cost seconds, and show no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.pairs import pairs
from tests.parity.layouts import Layout, batches, engine_of, one_rank_and_weights, train_on

COUNT = 24
STEPS = 10
BATCH = 4  # samples of a step
ROUNDED = 1e-5
"""Of a weight after ten steps of Adam, which divides gradients near zero by their size: 2.2e-6 was measured.

A plain loop that adds the same samples in another order differs by 5e-7 in float32, and by 1e-15 in float64.
"""

SIZES = {"model.num_layers": "2", "train.global_batch": str(BATCH)}
RECOMPUTE: dict[str, dict[str, str]] = {
    "none": {},
    "selective": {"recompute.granularity": "selective"},
    "full": {"recompute.granularity": "full", "recompute.num_layers": "1"},
}


def is_allowed(
    tp: int, pp: int, sp: int, dp: int, zero: int, scatter: bool, engine: str = "deepspeed", **_: Any
) -> bool:
    """Return whether the layout is one of two to four ranks that is not refused."""
    has_zero = zero < 2 or pp == 1 or engine == "native"
    return (tp > 1 or not scatter) and has_zero and 1 < tp * pp * sp * dp <= 4


def layout_of(case: Mapping[str, Any], recompute: Mapping[str, dict[str, str]] = RECOMPUTE) -> Layout:
    """Return the layout of a drawn ``case``."""
    micro_batch = BATCH // case["dp"] // case["accumulation"]
    more = {"train.micro_batch": str(micro_batch), **recompute[case["recompute"]]}
    if case["scatter"]:
        more["parallel.scatter_norms"] = "true"
    if case["zero"] == 3:
        more["deepspeed.param_persistence_threshold"] = "0"
    degrees = {name: case[name] for name in ("tp", "pp", "sp", "dp")}
    layout = Layout(case["kind"], **degrees, zero=case["zero"], more=more)
    return layout.on(case.get("engine", "deepspeed"))


def draw(values: Mapping[str, Any], recompute: Mapping[str, dict[str, str]] = RECOMPUTE) -> list[Layout]:
    """Return at least :data:`COUNT` layouts with every two of ``values``, the smaller first.

    Those that hold all pairs have four ranks, nearly all; the others have two.
    """
    covering = pairs(values, allowed=is_allowed)
    small = [case for case in pairs(values, allowed=_has_two_ranks) if case not in covering]
    cases = [*covering, *small[: max(0, COUNT - len(covering))]]
    return sorted((layout_of(case, recompute) for case in cases), key=lambda layout: layout.ranks)


def _has_two_ranks(**case: Any) -> bool:
    return is_allowed(**case) and case["tp"] * case["pp"] * case["sp"] * case["dp"] == 2


def whole_batch(kind: str) -> Layout:
    """Return the one rank that has all samples of a step in one micro-batch."""
    return Layout(kind, more={"train.micro_batch": str(BATCH)})


def of_one_rank(kind: str) -> tuple[list[float], list[float], dict[str, Any]]:
    """Return losses, gradient norms and weights of the plain loop on one rank."""
    more = {**SIZES, "train.micro_batch": str(BATCH)}
    return one_rank_and_weights(kind, steps=STEPS, more=tuple(more.items()))


def train_like_one_rank(layout: Layout, held_out: Any) -> tuple[Any, list[Any]]:
    """Train, compare with the loop on one rank, and return the settings and each step's result.

    Args:
        layout: of this rank and its peers.
        held_out: sums and counts of the losses of the next step's samples, by the weights of one rank.
    """
    import torch

    from megads.parallel.tensor import take_shard

    losses, norms, weights = of_one_rank(layout.kind)
    engine, run, groups = engine_of(layout, **SIZES)
    results = train_on(engine, run, groups, range(STEPS))
    assert [float(r.loss) for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    for state in engine.state.by_parameter():
        wanted = take_shard(weights[state.name].detach(), state.parameter.shard, groups.tensor_rank, groups.tensor_size)
        torch.testing.assert_close(state.tensors["weight"], wanted, rtol=1e-4, atol=ROUNDED)
    found = engine.eval_losses(batches(run, STEPS, groups.data_rank))
    torch.testing.assert_close(found, held_out, rtol=1e-4, atol=1e-4)
    return run, results
