"""What a run measures against what was predicted: lines, reasons, figures; all from given steps."""

from __future__ import annotations

import math

import pytest

from megads.monitor.predicted import Clues, Comparison, MeasuredStep, off, scatter_of
from megads.plan.prediction import Prediction

GIB = 2**30
PARTS = {"compute": 0.6, "memory": 0.2, "optimizer": 0.05, "communication": 0.08, "idle": 0.04, "host": 0.03}
GIVEN = Prediction(60 * GIB, 1.0, 8192.0, 0.4, PARTS, device="NVIDIA H100 80GB HBM3", source="h100")
USUAL = {"data": 0.0, "forward": 0.27, "backward": 0.53, "communication": 0.12, "optimizer": 0.05, "other": 0.03}


def step(**more: float) -> MeasuredStep:
    parts = {name: took + more.get(name, 0.0) for name, took in USUAL.items()}
    return MeasuredStep(sum(parts.values()), parts["data"], {**{f"time/{n}_s": s for n, s in parts.items()}})


def compared(*steps: MeasuredStep, prediction: Prediction = GIVEN, batch: int = 8) -> Comparison:
    """Return the comparison after a first step of a minute and ``steps``."""
    found = Comparison(prediction, 8)
    for each in (MeasuredStep(60.0, 0.0, steps[0].parts if steps else {}), *steps):
        found.add(each, batch)
    return found


def test_as_predicted():
    line = compared(*[step()] * 9).line(59 * GIB, Clues())
    assert line == "1 s per step, predicted 1 s: as predicted; memory 59 GiB, predicted 60 GiB"


@pytest.mark.parametrize(
    ("more", "clues", "told"),
    [
        (
            {"data": 0.5},
            Clues("rank 3 on b computes ..."),
            "50% slower, likely waiting for data (0.5 s, predicted 0 ms)",
        ),
        ({"communication": 0.5}, Clues(), "50% slower, likely communication (0.62 s, predicted 0.12 s)"),
        (
            {"communication": 0.5},
            Clues("rank 37 on x3004 computes 1.42 times as long as the median (412 ms against 290 ms)"),
            "50% slower, likely a straggler: rank 37 on x3004 computes 1.42 times as long as the median "
            "(412 ms against 290 ms)",
        ),
        ({"backward": 0.7}, Clues("rank 0 on a computes"), "70% slower, likely a straggler: rank 0 on a computes"),
        (
            {"backward": 0.7},
            Clues(clock=lambda: "1200 of 1980 MHz, 87 C"),
            "70% slower, likely throttling: 1200 of 1980 MHz, 87 C",
        ),
        ({"forward": 0.7}, Clues(), "70% slower, likely computation (1.5 s, predicted 0.8 s)"),
        ({"optimizer": 0.4}, Clues(), "40% slower, likely the optimizer (0.45 s, predicted 50 ms)"),
        (
            {"other": 0.4},
            Clues(clock=lambda: "never asked"),
            "40% slower, likely the host, outside of passes and optimizer (0.43 s, predicted 30 ms)",
        ),
        ({"other": 0.3}, Clues("rank 3 on b"), "30% slower"),
        ({"forward": -0.2}, Clues(), "20% faster"),
    ],
)
def test_slower_by_a_third_has_the_likely_reason(more, clues, told):
    line = compared(*[step(**more)] * 9).line(59 * GIB, clues)
    assert line.partition(" s: ")[2] == f"{told}; memory 59 GiB, predicted 60 GiB"
    assert "\n" not in line


def test_the_device_is_asked_for_its_clock_only_where_work_is_slow():
    def ask() -> str:
        raise AssertionError("asked")

    for more in ({}, {"communication": 0.9}, {"data": 0.9}):
        compared(*[step(**more)] * 9).line(1, Clues(clock=ask))


def test_first_steps_that_compile_are_no_reason_of_the_last():
    slow, usual = step(backward=3.0), step()
    line = compared(*[slow] * 6, *[usual] * 3).line(1, Clues(is_compiled=True))
    assert ", likely the first steps (compilation): the last 3 took 1 s" in line
    assert "(caches, clocks)" in compared(*[slow] * 6, *[usual] * 3).line(1, Clues())


def test_without_sections_the_line_says_how_to_see_why():
    steps = [MeasuredStep(2.0, 0.0, {})] * 9
    assert "likely to be found with TIME_SPLIT=1" in compared(*steps).line(1, Clues())
    assert compared(*steps).measured(100, 7)["step_s"] == 2.0


def test_on_a_cpu_the_prediction_tells_only_work_and_waiting_apart():
    parts = {**dict.fromkeys(PARTS, 0.0), "compute": 1.0}
    given = Prediction(GIB, 1.0, 8192.0, 0.0, parts, device="cpu", source="anchored on x")
    found = compared(*[step(optimizer=0.5)] * 9, prediction=given)
    assert found.line(1, Clues()).startswith("1.5 s per step, predicted 1 s: 50% slower, likely computation (1.38 s, ")


@pytest.mark.parametrize("prediction", [Prediction(), Prediction(60 * GIB)])
def test_nothing_is_said_where_nothing_was_predicted(prediction):
    assert compared(*[step()] * 9, prediction=prediction).line(1, Clues()) == ""
    assert Comparison(GIVEN, 8).line(1, Clues()) == ""


def test_rows_have_the_prediction_of_the_full_batch():
    found = compared(step())
    assert found.row(8) == {"predicted_step_s": 1.0, "predicted_memory_bytes": 60 * GIB}
    assert found.row(4) == {"predicted_memory_bytes": 60 * GIB}
    assert compared(step(), prediction=Prediction(7)).row(8) == {"predicted_memory_bytes": 7}
    assert compared(step(), prediction=Prediction()).row(8) == {}


def test_figures_are_medians_of_the_steps_that_count():
    found = compared(*[step()] * 5, *[step(data=0.5)] * 6)
    assert found.predicted() == {"step_s": 1.0, "tokens_per_s": 8192.0, "memory_bytes": 60 * GIB}
    measured = found.measured(3000, 59 * GIB)
    assert measured["steps"] == 11
    assert measured["step_s"] == pytest.approx(1.5)
    assert measured["tokens_per_s"] == pytest.approx(2000)
    assert measured["work_s"] == pytest.approx(1.0)  # without the wait for data
    assert measured["scatter"] == pytest.approx(0, abs=1e-12)
    assert (measured["data_s"], measured["forward_s"]) == (0.5, 0.27)
    assert compared(*[step()] * 3, batch=4).measured(3000, 5) == {"memory_bytes": 5}  # of a growing batch


def test_the_scatter_is_that_of_a_normal_distribution():
    assert scatter_of([1.0, 1.1, 0.9]) == pytest.approx(0.14826)
    assert off(1.05, 1.0) == "5% slower"
    assert off(0.9, 1.0) == "10% faster"
    assert off(1.0049, 1.0) == "as predicted"
    assert math.isnan(Comparison(GIVEN, 8).step_s)
