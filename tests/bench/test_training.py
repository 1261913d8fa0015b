"""Tokens per second through the engine, both conventions of MFU, what does not fit, and waits of the host."""

from __future__ import annotations

import warnings

import pytest

from megads.bench.models import TINY, Model, settings
from tests.bench.made import ROOT, bench_of, result_of
from tests.ranks import run_ranks


def _rows(ranks: int) -> None:
    from megads.bench.training import measure, measure_waits
    from megads.plan.flops import train_flops_per_token

    bench, result = bench_of(ranks, peaks=lambda dtype: 0.5), result_of("training")
    measure(bench, result)
    (row,) = result.rows
    run = settings(ROOT, ranks, TINY, "fp32", 2, 2)
    assert (run.parallel.data, run.train.global_batch) == (ranks, 4 * ranks)
    tokens = run.train.global_batch * run.model.seq_length / row["step_s"] / ranks
    assert row["tokens_per_s"] == pytest.approx(tokens)
    square, causal = (train_flops_per_token(run.model, 32, causal=half) for half in (False, True))
    assert row["mfu"] == pytest.approx(tokens * square / 1e12 / 0.5)
    assert row["mfu_causal"] == pytest.approx(row["mfu"] * causal / square)
    assert causal < square
    assert row["steps"] >= 4
    waits = result_of("waits")
    measure_waits(bench, waits)
    assert (waits.status, waits.rows) == ("skipped", [])
    assert waits.notes == ["not applicable: a CPU has no queue"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_model_has_a_row(ranks):
    run_ranks(ranks, _rows, ranks)


def test_a_model_that_does_not_fit_is_a_line(monkeypatch):
    from megads.bench import training

    monkeypatch.setattr(training, "memory", lambda row, device: (2**30, 2**30))
    bench, result = bench_of(), result_of("training")
    monkeypatch.setattr(training, "CPU_MODELS", (Model("gpt-1.7B"), Model("gpt-3.6B", {"model.num_heads": "7"})))
    bench.is_tiny = False
    training.measure(bench, result)
    assert result.rows == []
    assert result.notes[0].startswith("gpt-1.7B: does not fit: needs about ")
    assert result.notes[0].endswith(" per rank, and 1 GiB is free")
    assert result.notes[1].startswith("gpt-3.6B: ")


def test_without_time_a_model_is_dropped(monkeypatch):
    from megads.bench import training

    bench, result = bench_of(total_s=5.0), result_of("training")
    bench.budget.begin("training")
    monkeypatch.setattr(training, "BUILT_PER_S", 1e3)
    training.measure(bench, result)
    assert (result.rows, result.status) == ([], "partial")
    assert "dropped: about " in result.notes[0]


def test_waits_are_counted_by_place(monkeypatch):
    from megads.bench import training

    bench = bench_of()
    bench.is_tiny = True
    places = ["/x/site-packages/deepspeed/runtime/engine.py:7", f"{ROOT}/megads/engine/base.py:1"]
    monkeypatch.setattr(training, "make", lambda bench, run: None)
    monkeypatch.setattr(training, "train", lambda *given: [])
    monkeypatch.setattr(
        training, "_places", lambda *given: [training._short(places[0])] * 2 + [training._short(places[1])]
    )
    result = result_of("waits")
    training.measure_waits(bench, result)
    assert result.rows == [
        {"place": "deepspeed/runtime/engine.py:7", "waits": 2},
        {"place": "megads/engine/base.py:1", "waits": 1},
    ]
    assert result.notes == ["3 per step of 2 micro-batches"]


def test_settings_of_presets_fit_any_number_of_ranks():
    from megads.bench.training import CPU_MODELS, MODELS

    for model in (*MODELS, *CPU_MODELS):
        run = settings(ROOT, 8, model, "bf16", 1, 4)
        assert run.train.global_batch == 32
        assert (run.model.hidden_dropout, run.parallel.tensor, run.parallel.pipeline) == (0, 1, 1)


@pytest.mark.parametrize(
    ("name", "peak", "found"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0, "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 PCIe", 756.0, "NVIDIA H100 PCIe"),
        ("NVIDIA H100 NVL", 835.0, None),  # other bandwidths
        ("NVIDIA GH200 480GB", 989.0, "NVIDIA GH200 480GB"),
        ("Tesla V100-SXM2-16GB", 125.0, "Tesla V100-SXM2-16GB"),
        ("Tesla V100-PCIE-16GB", 112.0, None),
        ("NVIDIA A100-PCIE-40GB", 312.0, None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 120.0, None),
        ("Intel(R) Data Center GPU Max 1550", 416.0, "Intel(R) Data Center GPU Max 1550"),
        ("cpu", None, None),
    ],
)
def test_the_roofline_is_that_of_the_same_device(name, peak, found):
    from megads.bench.training import accelerator_like

    row = accelerator_like(name, lambda dtype: peak)
    assert (row.device_name if row else None) == found


def test_a_step_is_compared_with_its_roofline():
    from types import SimpleNamespace
    from typing import Any

    from megads.bench.training import MODELS, of_roofline
    from megads.plan.places.place import place_of
    from megads.plan.time.step import step_time

    bench: Any = bench_of(peaks=lambda dtype: 989.0)
    run = settings(ROOT, 1, MODELS[1], "bf16", 4, 4)
    estimated = step_time(run, 1, place_of("h100")).step_s
    assert of_roofline(bench, run, 1.0) is None
    bench.vendor = SimpleNamespace(product_dtype=str, device_name=lambda device: "NVIDIA H100 80GB HBM3")
    assert of_roofline(bench, run, 2 * estimated) == pytest.approx(0.5)


def test_no_warning_of_another_kind_counts_as_a_wait():
    from megads.device.measuring import host_waits

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with host_waits(bench_of().vendor) as found:
            warnings.warn("called a synchronizing operation", UserWarning, stacklevel=1)
    assert found is None
