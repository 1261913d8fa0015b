"""Every message of a step is one that docs/parallelism.md reports, and none of these is missing."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from megads.config.stages import stage_steps
from tests.parity.layouts import Layout, batches, engine_of, rate
from tests.ranks import run_ranks

SCATTER = {"parallel.scatter_norms": "true"}
FULL = {"recompute.granularity": "full"}
PARTITIONED = {"deepspeed.param_persistence_threshold": "0"}
LAYOUTS = [
    Layout("llama", tp=2, zero=0),
    Layout("gpt", tp=2, zero=1, more={**SCATTER, **FULL}),
    Layout("gqa", sp=2, zero=1, more=FULL),
    Layout("llama", dp=2, zero=2),
    Layout("llama", dp=2, zero=3, more=PARTITIONED),
    Layout("gqa", tp=2, sp=2, zero=1, more=SCATTER),
    Layout("gpt", pp=2, dp=2, zero=0),
    Layout("gpt", pp=2, tp=2, zero=1, more=SCATTER),
    Layout("gpt", tp=2, dp=2, zero=1, more={"data.eod_mask_loss": "true"}),
    Layout("gqa", pp=2, sp=2, zero=1),
    Layout("gpt", pp=4, zero=1),
]


def formulas() -> list[tuple[str, str, str, str, str]]:
    """Return axis, collective, condition, calls and elements of every row of the document's table."""
    text = (Path(__file__).parents[2] / "docs/parallelism.md").read_text()
    rows = re.findall(r"^\| (\w+) \| [^|]+ \| ([\w-]+) \| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", text, re.MULTILINE)
    assert len(rows) >= 20
    return rows


def symbols(layout: Layout, groups, engine) -> dict[str, object]:
    """Return the document's symbols on this rank."""
    run = layout.run()
    model, train, grid = run.model, run.train, run.parallel
    steps = stage_steps(run)[groups.pipe_rank]
    layers = sum(0 < step <= model.num_layers for step in steps)
    s, kv = model.seq_length // layout.sp, model.num_kv_heads // layout.tp
    copy = groups.pipe_rank > 0 and model.tied_embeddings and groups.pipe_rank == layout.pp - 1
    rows = engine.module.embedding.weight.numel() if hasattr(engine.module, "embedding") else 0
    held = sum(getattr(weight, "ds_numel", weight.numel()) for weight in engine.module.parameters())
    return {
        "t": layout.tp,
        "c": layout.sp,
        "n": layout.dp * layout.sp,
        "p": layout.pp,
        "m": train.grad_acc_steps,
        "B": train.micro_batch,
        "s": s,
        "H": model.hidden_size,
        "x": train.micro_batch * s * model.hidden_size,
        "L": layers,
        "R": layers if run.recompute.granularity == "full" else 0,
        "q": model.num_heads // layout.tp,
        "k": max(kv, layout.sp),
        "D": model.head_dim,
        "w": model.hidden_size * (2 if model.normalization == "layernorm" else 1),
        "V": rows,
        "P": held - (rows if copy else 0),
        "first": int(0 in steps),
        "last": int(model.num_layers + 1 in steps),
        "scatter": int(grid.scatter_norms),
        "learned": int(model.position_embedding == "learned"),
        "tied": int(model.tied_embeddings),
        "masked": int(run.data.eod_mask_loss),
        "zero": layout.zero,
    }


def _sends_what_is_told(layout: Layout) -> None:
    from tests.parity.recorder import Traffic

    engine, run, groups = engine_of(layout)
    known = symbols(layout, groups, engine)
    for step in range(3):  # the first steps also learn: ZeRO 3 its order, ZeRO its buckets
        traffic = Traffic(groups)
        with traffic:
            engine.train_step(batches(run, step, groups.data_rank), rate(step))
    calls: Counter[tuple[str, str]] = Counter()
    elements: Counter[tuple[str, str]] = Counter()
    for axis, collective, condition, how_often, how_much in formulas():
        ranks = frozenset(groups.ranks(axis))
        if len(ranks) > 1 and eval(condition, {}, known):
            # Axes that partition the ranks alike cannot be told apart by what is seen.
            key = (traffic.axes[ranks], collective)
            calls[key] += eval(how_often, {}, known)
            elements[key] += eval(how_much, {}, known)
    told = {key: (calls[key], elements[key]) for key in sorted(calls) if calls[key]}
    assert traffic.rows == told


@pytest.mark.dist
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_step_sends_what_the_document_tells(layout):
    run_ranks(layout.ranks, _sends_what_is_told, layout)


def per_layer(axis: str, collective: str, **settings: int) -> float:
    """Return how many calls one more layer adds for each micro-batch, by the document's formulas."""
    known = {name: 0 for name in ("R", "last", "first", "learned", "tied", "masked", "scatter")} | settings
    known |= {"m": 1, "p": 1, "zero": 1, "n": 1}
    totals = [
        sum(
            eval(how_often, {}, {**known, "L": layers})
            for where, kind, condition, how_often, _ in formulas()
            if (where, kind) == (axis, collective) and eval(condition, {}, {**known, "L": layers})
        )
        for layers in (4, 5)
    ]
    return totals[1] - totals[0]


def test_nothing_sends_more_than_the_published_algorithms():
    # Megatron-LM (arXiv 1909.08053, section 3): two all-reduces in each direction.
    assert per_layer("tensor", "all-reduce") == 4
    # Its sequence parallelism (arXiv 2205.05198, 4.2.2): an all-gather and a reduce-scatter for each of these, and
    # two all-gathers more in the backward pass, for inputs of which only a part was kept.
    assert per_layer("tensor", "reduce-scatter", scatter=1) == 4
    assert per_layer("tensor", "all-gather", scatter=1) == 4 + 2
    # Ulysses (arXiv 2309.14509, section 3.2): four all-to-alls in each direction.
    assert per_layer("seq", "all-to-all") == 4 < 8


def test_zero_1_sends_one_reduce_scatter_and_one_all_gather_of_the_parameters():
    known = {"zero": 1, "P": 1000, "m": 7, "n": 4, "last": 0, "masked": 0}
    rows = [row for row in formulas() if row[0] == "data_seq" and eval(row[2], {}, known)]
    sent = {kind: eval(how_much, {}, known) for _, kind, _, _, how_much in rows}
    assert sent == {"reduce-scatter": 1000, "all-gather": 1000, "all-reduce": 2}
