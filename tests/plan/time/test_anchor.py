"""Measurements correct the rates of a place: what was planted comes back, and the run's own step is predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from megads.plan.places.place import Place, place_of
from megads.plan.places.rates import Rates
from megads.plan.prediction import parts_of
from megads.plan.time.anchor import anchored
from megads.plan.time.constants import fitted
from megads.plan.time.measured import MeasuredRates, MeasuredRun
from megads.plan.time.step import step_time

H100 = place_of("h100", root=None)
CPU = place_of("cpu", root=None)
NAME = H100.device.device_name


def run_of(ranks: int, **env: str) -> RunConfig:
    given = {"NLAYERS": "8", "HIDDEN": "4096", "HEADS": "32", "SEQ": "4096", "TRAIN_ITERS": "100", "DTYPE": "bf16"}
    resolved = resolve(env={**given, **env}, machine="generic")
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=32000).run


def measured_at(place: Place, rates: Rates, ranks: int = 1, *, steps: int = 40, **env: str) -> MeasuredRun:
    """Return a run whose steps are what the estimate gives at ``rates``."""
    run = run_of(ranks, **env)
    found = step_time(run, ranks, replace(place, rates=rates))
    parts = parts_of(found)
    rest = parts["compute"] + parts["memory"]
    seen = {"forward": rest / 3, "backward": rest * 2 / 3, "other": parts["host"], "data": 0.0}
    seen |= {"optimizer": parts["optimizer"], "communication": parts["communication"] + parts["idle"]}
    return MeasuredRun("runs/x", run, place.device.device_name, ranks, 8, found.step_s, 0.01, steps, seen)


def again(place: Place, measured: MeasuredRun) -> float:
    return step_time(measured.run, measured.world_size, place).step_s


@pytest.mark.parametrize("planted", [Rates(0.8, 0.9, 1.0), Rates(1.15, 1.1, 1.0), Rates(0.4, 0.5, 1.0)])
def test_one_device_gives_back_the_rates_that_were_planted(planted):
    measured = measured_at(H100, planted)
    place = anchored(H100, measured)
    assert again(place, measured) == pytest.approx(measured.step_s, rel=2e-4)
    assert place.rates.memory == pytest.approx(planted.memory, rel=0.02)
    assert place.rates.matmul == pytest.approx(planted.matmul, rel=0.02)
    assert place.rates.links == 1.0
    # Another length of the same model is predicted by them, too, as if it had been measured.
    longer = measured_at(H100, planted, SEQ="8192")
    assert again(place, longer) == pytest.approx(longer.step_s, rel=0.02)


@pytest.mark.parametrize("layout", [{}, {"TP": "2"}, {"ZERO_STAGE": "3"}, {"PP": "2", "GRAD_ACC_STEPS": "8"}])
def test_the_runs_own_step_is_predicted_in_every_layout(layout):
    measured = measured_at(H100, Rates(0.7, 0.9, 0.6), 8, **layout)
    place = anchored(H100, measured)
    assert again(place, measured) == pytest.approx(measured.step_s, rel=2e-4)
    assert again(H100, measured) < 0.95 * measured.step_s
    # A pipeline's sections are those of one stage, and say nothing about memory and links.
    assert (place.rates.links == 1.0) == ("PP" in layout)


def test_the_line_says_what_changed_and_by_which_steps():
    place = anchored(H100, measured_at(H100, Rates(0.8, 1.0, 1.0)))
    assert place.rates.is_anchored
    line = place.rates.source
    assert line.startswith("anchored on runs/x: matmul 0.")
    assert " -> 0." in line
    assert line.endswith(" +- 1.0%)")
    assert "40 steps of " in line
    assert "\n" not in line
    same = anchored(H100, measured_at(H100, Rates()))
    assert "nothing to correct" in same.rates.source
    assert same.rates.matmul == pytest.approx(1.0, rel=1e-3)


def test_without_sections_one_factor_is_left():
    measured = replace(measured_at(H100, Rates(0.8, 0.8, 1.0)), parts={})
    place = anchored(H100, measured)
    assert again(place, measured) == pytest.approx(measured.step_s, rel=2e-4)
    assert place.rates.matmul == pytest.approx(place.rates.memory)


def test_what_no_rate_explains_stays_an_error_that_is_said():
    honest = measured_at(H100, Rates())
    place = anchored(H100, replace(honest, step_s=100 * honest.step_s))
    assert (place.rates.matmul, place.rates.memory) == (0.1, 0.1)
    assert "of the step stay unexplained" in place.rates.source
    quick = anchored(H100, replace(honest, step_s=honest.step_s / 100))
    assert quick.rates.matmul == 2.5
    assert "stay unexplained" in quick.rates.source


def test_an_optimizer_that_is_no_measure_of_memory_gives_way_to_the_whole_step():
    """Sections from which the step cannot follow within bounds: the step decides, with one factor."""
    honest = measured_at(H100, Rates())
    odd = replace(honest, parts={**honest.parts, "optimizer": 9 * honest.step_s})
    place = anchored(H100, odd)
    assert again(place, odd) == pytest.approx(odd.step_s, rel=2e-4)
    assert place.rates.memory == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"device": "NVIDIA A100-SXM4-80GB"}, "runs/x was measured on NVIDIA A100-SXM4-80GB, not on "),
        ({"device": "cpu"}, "runs/x was measured on cpu, not on "),
        ({"device": ""}, "was measured on an unknown device, not on "),
        ({"steps": 9}, "runs/x has 9 steady steps and an anchor needs 10 "),
        ({"steps": 1}, "runs/x has 1 steady step and an anchor needs 10 "),
    ],
)
def test_other_devices_and_short_runs_are_refused_in_one_line(change, problem):
    with pytest.raises(ConfigError) as found:
        anchored(H100, replace(measured_at(H100, Rates()), **change))
    assert problem in str(found.value)
    assert "\n" not in str(found.value)


def test_without_a_place_it_is_the_device_that_was_measured():
    place = anchored(None, measured_at(H100, Rates(0.9)))
    assert place.device == H100.device
    with pytest.raises(ConfigError, match="measured on Some Device: not in the tables"):
        anchored(None, replace(measured_at(H100, Rates()), device="Some Device"))


def test_a_cpu_has_one_rate_and_no_made_up_ones():
    measured = replace(measured_at(CPU, Rates()), step_s=123.0, parts={"optimizer": 60.0})
    place = anchored(None, measured)
    assert again(place, measured) == pytest.approx(123, rel=2e-4)
    assert place.rates.matmul == pytest.approx(place.rates.memory) != 1.0
    assert place.rates.host == 1.0
    assert " GFLOP/s per rank, over the whole step (40 steps of 2m03s +- 1.0%)" in place.rates.source
    # A step that is shorter than what the host is said to need changes that, too.
    short = replace(measured, step_s=0.002)
    place = anchored(None, short)
    assert again(place, short) == pytest.approx(0.002, rel=2e-4)
    assert place.rates.host == pytest.approx(place.rates.matmul)
    assert place.per_host == 8


def bench(**found: object) -> MeasuredRates:
    return MeasuredRates(**{"name": "bench.json", "device": NAME, **found})  # type: ignore[arg-type]


def test_a_benchmark_gives_rates_of_its_parts():
    peak, by = H100.peak_tflops("bf16"), fitted()
    products = (("bf16", 2.0 * 4096**3, 0.75 * peak), ("bf16", 2.0 * 8192**3, 0.75 * peak), ("bf16", 2.0**31, 1.0))
    place = anchored(
        H100,
        bench(
            products=products,
            memory_gb_s=0.5 * by.memory * 3350,
            links_gb_s={8: 0.9 * by.links * H100.level(8).gb_s},
        ),
    )
    assert place.rates.matmul == pytest.approx(0.75 / by.matmul_h100)
    assert place.rates.memory == pytest.approx(0.5)
    assert place.rates.links == pytest.approx(0.9)
    assert place.rates.source.startswith(f"anchored on bench.json: matmul {by.matmul_h100:.2f} -> 0.75, memory")


def test_models_that_a_benchmark_trained_outweigh_its_products():
    steps = tuple(replace(measured_at(H100, Rates(0.8, 0.9), SEQ=seq), parts={}, steps=4) for seq in ("2048", "4096"))
    place = anchored(
        H100, bench(memory_gb_s=0.9 * fitted().memory * 3350, steps=steps, products=(("bf16", 1e13, 1.0),))
    )
    assert place.rates.memory == pytest.approx(0.9)
    assert place.rates.matmul == pytest.approx(0.8, rel=1e-3)
    assert place.rates.source.endswith("(2 models that it trained, now within 0%)")


def test_a_benchmark_without_rates_or_of_a_cpu_is_refused():
    with pytest.raises(ConfigError, match=r"bench\.json has no rates: no part of matmul"):
        anchored(H100, bench())
    with pytest.raises(ConfigError, match="predicts no run; anchor on a run"):
        anchored(None, bench(device="CPU Some"))
