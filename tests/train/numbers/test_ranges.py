"""Ranges per layer are those of one rank in every layout, by both engines, and change nothing of the step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from megads.train.numbers.ranges import Ranges, _numbers, place_of
from tests.parity.layouts import Layout
from tests.parity.loops import loop_of, state_of
from tests.ranks import run_ranks

CHANGES = {
    "model.num_layers": "2",
    "model.hidden_dropout": "0",
    "model.attention_dropout": "0",
    "train.micro_batch": "1",
    "train.global_batch": "4",
    "train.train_iters": "4",
    "checkpoint.save_interval": "0",
    "stability.rounding_interval": "0",
    "stability.ranges_interval": "2",
    "optim.lr_warmup_frac": "0",
    "data.num_workers": "0",
}


def hooks(loop: Any) -> int:
    """Return how many hooks and other methods the modules have."""
    chunks = getattr(loop.training.engine, "chunks", None) or [loop.training.engine.module]
    modules = [module for chunk in chunks for module in chunk.modules()]
    replaced = sum(name in vars(chunk) for chunk in chunks for name in ("loss", "project"))
    return replaced + sum(len(module._forward_hooks) for module in modules)


def _measured(layout: Layout, folder: str, changes: Any) -> None:
    """Do two steps, of which the second is measured; leave its row, and what the engine said of the step."""
    loop = loop_of(layout, Path(folder), **{**CHANGES, **changes})
    before, rows, results = hooks(loop), [], []
    inner = loop.numbers.rows
    loop.numbers.rows = lambda result: results.append(result) or rows.append(inner(result)) or []
    with loop.training.batches("train") as batches:
        for _ in range(2):
            loop.step(batches)
            assert hooks(loop) == before
    if loop.training.groups.rank == 0:
        assert rows[0] == [{}, {}]
        facts = {"loss": float(results[1].loss), "grad_norm": results[1].grad_norm}
        Path(folder, "row.json").write_text(json.dumps({**facts, **rows[1][1]}))


KINDS = ("llama", "llama-tied", "gpt")


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """The rows of one rank, by kind of model."""
    return {kind: _row(Layout(kind, engine="native"), tmp_path_factory.mktemp(kind)) for kind in KINDS}


def _row(layout: Layout, folder: Path) -> dict[str, float]:
    run_ranks(layout.ranks, _measured, layout, str(folder / "run"), {})
    row: dict[str, float] = json.loads((folder / "run" / "row.json").read_text())
    return row


LAYOUTS = [
    Layout(),
    Layout(dp=2, zero=0, engine="native"),
    Layout(dp=2, zero=1),
    Layout(tp=2, dp=2, zero=2, engine="native", more={"parallel.scatter_norms": "true"}),
    Layout("gpt", tp=2, sp=2, zero=1),
    Layout(dp=2, sp=2, zero=3, engine="native"),
    Layout(dp=2, zero=3, more={"recompute.granularity": "full"}),
    Layout("llama-tied", pp=2, dp=2, zero=1, engine="native"),
    Layout("llama-tied", tp=2, pp=2, zero=1),
]


@pytest.mark.dist
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_measures_what_one_rank_does(tmp_path, layout, one_rank):
    expected, row = one_rank[layout.kind], _row(layout, tmp_path)
    assert row.keys() == expected.keys()
    for key, value in expected.items():
        assert row[key] == pytest.approx(value, rel=1e-5, abs=1e-9), key


@pytest.mark.dist
def test_the_numbers_are_those_of_the_step(one_rank):
    row = one_rank["llama"]
    norms = [value for key, value in row.items() if key.startswith("layer_grad_norm/")]
    assert math.sqrt(sum(each**2 for each in norms)) == pytest.approx(row["grad_norm"], rel=1e-9)
    assert row["micro_batch_loss_min"] < row["loss"] < row["micro_batch_loss_max"]
    places = ["embedding", "layers.0", "layers.1", "final_norm", "head"]
    for kind in ("activation_max", "activation_rms", "layer_grad_norm", "layer_weight_norm", "layer_update_ratio"):
        assert [key for key in row if key.startswith(f"{kind}/")] == [f"{kind}/{place}" for place in places]


def _as_steps(folder: str) -> None:
    layout = Layout(engine="native")
    changes = {**CHANGES, "train.global_batch": "1", "stability.ranges_interval": "1"}
    loop = loop_of(layout, Path(folder), **changes)
    (chunk,) = loop.training.engine.chunks
    weights = {name: each.detach().clone() for name, each in chunk.named_parameters()}
    with loop.training.batches("train") as batches:
        tokens = next(batches)[:, :-1]
    outputs, x = {}, tokens
    with torch.no_grad():
        for place, step in zip(("embedding", "layers.0", "layers.1", "head"), chunk.steps(), strict=True):
            outputs[place] = x = step(x)
    rows: list[Any] = []
    inner = loop.numbers.rows
    loop.numbers.rows = lambda result: rows.extend(inner(result)) or []
    with loop.training.batches("train") as batches:
        loop.step(batches)
    row = rows[1]
    outputs["head"] = outputs["head"][..., : chunk.config.vocab_size]
    for place, output in outputs.items():
        assert row[f"activation_max/{place}"] == pytest.approx(float(output.abs().max()), rel=1e-6)
        assert row[f"activation_rms/{place}"] == pytest.approx(float(output.double().square().mean().sqrt()), rel=1e-6)
    moved = {name: (each.detach() - weights[name]).double().norm() for name, each in chunk.named_parameters()}
    before = weights["head.weight"].double().norm()
    assert row["layer_weight_norm/head"] == pytest.approx(float(before), rel=1e-6)
    assert row["layer_update_ratio/head"] == pytest.approx(float(moved["head.weight"] / before), rel=1e-6)


@pytest.mark.dist
def test_a_layer_is_measured_where_its_output_is(tmp_path):
    run_ranks(1, _as_steps, str(tmp_path / "run"))


def _same_bits(layout: Layout, folder: str) -> None:
    states = []
    for interval in ("0", "1"):
        changes = {**CHANGES, "train.train_iters": "2", "stability.ranges_interval": interval}
        loop = loop_of(layout, Path(folder) / interval / "run", **changes)
        before = hooks(loop)
        real, during = loop.training.engine._real.train_step, []
        loop.training.engine._real.train_step = lambda *args, real=real, during=during, loop=loop, **more: (
            during.append(hooks(loop)) or real(*args, **more)
        )
        loop.run()
        assert during
        assert all((each > before) is (interval == "1") for each in during)
        states.append(state_of(loop))
        if loop.training.groups.rank == 0:
            text = (Path(folder) / interval / "run" / "metrics.jsonl").read_text()
            assert ("activation_max/layers.1" in text) is (interval == "1")
    assert states[0] == states[1]


@pytest.mark.dist
@pytest.mark.parametrize("layout", [Layout(dp=2, zero=1, engine="native"), Layout(tp=2, zero=1)], ids=str)
def test_a_run_has_the_same_bits_without_it_and_no_hooks(tmp_path, layout):
    run_ranks(layout.ranks, _same_bits, layout, str(tmp_path))


def test_what_is_counted_of_a_tensor():
    x = torch.tensor([0.0, -3e30, 4e30, math.nan, math.inf, -0.0], dtype=torch.float32)
    largest, squares, wrong, zeros, count = _numbers(x).tolist()
    assert (largest, wrong, zeros, count) == (pytest.approx(4e30), 2, 2, 6)
    assert squares == pytest.approx(25e60)
    assert _numbers(torch.zeros(3)).tolist() == [0, 0, 0, 3, 3]


def test_the_line_names_the_largest_and_its_layer():
    outputs = {"layers.0": [2.0, 8.0, 0, 0, 4], "layers.1": [5.0, 12.0, 1, 2, 4], "head": [9.0, 4.0, 0, 0, 4]}
    weights = {"layers.0": [1.0, 4.0, 1.0], "layers.1": [3.0, 4.0, 0.0]}
    found = Ranges(7, outputs, weights, [2.0, 3.0]).scaled(1.0)
    assert found.line() == (
        "ranges   step 7: largest activation 5 in layers.1, logits up to 9, largest gradient norm 0.866 in layers.1, "
        "largest update/weight 0.5 in layers.0, micro-batch losses 2.0000 to 3.0000, NaN or Inf in what leaves layers.1"
    )
    row = found.row()
    assert (row["activation_rms/layers.1"], row["activation_zeros/layers.1"]) == (2.0, 0.5)
    assert row["activation_nonfinite/layers.1"] == 0.25
    assert "activation_zeros/layers.0" not in row


def test_a_step_without_an_update_has_no_gradients():
    row = Ranges(7, {"layers.0": [2.0, 8.0, 0, 0, 4]}, {}, [2.0]).scaled(math.inf).row()
    assert not [key for key in row if key.startswith("layer_")]


def test_weights_belong_to_layers():
    names = ["layers.12.mlp.up.weight", "embedding.weight", "lm_head.dense.weight"]
    assert [place_of(name) for name in names] == ["layers.12", "embedding", "lm_head"]
