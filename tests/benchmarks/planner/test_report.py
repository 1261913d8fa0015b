"""Measured step times: predictions are near them, the page has them, and leaving a model out refits the constants."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest

from benchmarks.planner import fit
from benchmarks.planner.report import BEGIN, END, errors_of, held_back, report
from megads.plan.errors import FILE
from megads.plan.time.constants import Constants, fitted

PAGE = Path(__file__).parents[3] / "docs/planner.md"


@cache
def _given():
    return fit.measured()


def _errors(given):
    return [each.predicted(fitted()) / each.row.measured - 1 for each in given]


def test_predictions_are_near_what_was_measured():
    given = _given()
    errors = list(map(abs, _errors(given)))
    assert len(given) >= 60
    assert statistics.fmean(errors) <= 0.07
    assert max(errors) <= 0.2


def test_rows_that_nothing_was_fitted_to_are_near_too():
    bridge = [each for each in held_back() if each.row.suite == "Megatron-Bridge"]
    assert len(bridge) >= 5
    assert statistics.fmean(map(abs, _errors(bridge))) <= 0.07


def test_weak_scaling_from_few_to_thousands_of_devices():
    rows = [each for each in _given() if each.row.suite == "H100"]
    for model, system in {(each.row.group, each.row.system) for each in rows}:
        mine = sorted((each for each in rows if (each.row.group, each.row.system) == (model, system)),
                      key=lambda each: each.row.ranks)  # fmt: skip
        first, last = mine[0], mine[-1]
        predicted = last.predicted(fitted()) / first.predicted(fitted())
        assert predicted == pytest.approx(last.row.measured / first.row.measured, abs=0.03), (model, system)


def test_the_best_layout_of_every_sweep_is_among_the_first_three():
    places = re.findall(r"^\| .* \| \d+ \| (\d+) \|$", report(_given(), None, held_back(), fitted()), re.M)
    assert len(places) >= 5
    assert max(map(int, places)) <= 3


def test_the_page_and_the_package_have_these_rows():
    block = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert block, f"{PAGE} has no {BEGIN}"
    found = re.findall(r"^\| .* \| ([+-][\d.]+%) \| ([+-][\d.]+%) \|$", block, re.M)
    given = _given()
    assert [fit_error for fit_error, _ in found] == [f"{each:+.1%}" for each in _errors(given)], (
        "run `python -m benchmarks.planner --write`"
    )
    kept = json.loads(FILE.read_text())["step time"]
    for name, each in errors_of(given, [float(text.rstrip("%")) / 100 for _, text in found]).items():
        assert kept[name] == pytest.approx(each, abs=1e-3), name


@pytest.mark.parametrize("name", [each.name for each in fields(Constants)])
def test_no_constant_belongs_to_one_model(name):
    by = fitted()
    other = replace(by, **{name: 0.9 * getattr(by, name)})
    moved = {each.row.group for each in _given() if abs(each.predicted(other) / each.predicted(by) - 1) > 1e-4}
    assert len(moved) >= 2, moved


def test_a_fit_finds_planted_constants_again():
    rows = [each for each in _given() if each.row.suite == "A100"][::4]
    planted = Constants(matmul_a100=0.7)
    made = [fit.Measured(_with(each.row, each.predicted(planted)), each.case, each.sequences) for each in rows]
    found = fit.fit(made, steps=6)
    for each in made:
        assert each.predicted(found) == pytest.approx(each.row.measured, rel=0.03)
    assert found.matmul_a100 < 0.8


def _with(row, seconds):
    return replace(row, measured=seconds)
