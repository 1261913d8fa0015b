"""The published rows are complete and agree with themselves; the clusters that some were measured on are places."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from megads.plan.places.accelerators import ACCELERATORS
from megads.plan.places.place import place_of

PLANNER = Path(__file__).parents[3] / "benchmarks/planner"
FILES = sorted((PLANNER / "published").glob("*.csv"))


def columns(path: Path) -> set[str]:
    with path.open(newline="") as file:
        return {name.lower() for name in next(csv.reader(file))}


LAYOUTS = [path for path in FILES if {"gpus", "tp", "pp", "dp"} <= columns(path)]
"""Runs; the others measure parts, or say layouts in other words."""


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


def degree(row: dict[str, str], name: str) -> int:
    return int(row.get(name) or row.get(name.upper()) or 1)


def test_the_readme_lists_every_file_and_its_rows():
    readme = (PLANNER / "published/README.md").read_text()
    lines = {line.split("|")[1].strip(): line.split("|")[3].strip() for line in readme.splitlines() if "csv`" in line}
    assert lines == {f"`{path.name}`": str(len(rows_of(path))) for path in FILES}


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_layouts_fill_their_devices_and_batches_divide(path):
    for row in rows_of(path):
        assert row.get("source") or row.get("path"), row
        gpus = int(row["gpus"])
        assert gpus == degree(row, "tp") * degree(row, "pp") * degree(row, "cp") * degree(row, "dp"), row
        gbs, mbs = (row.get(name) or row.get(name.upper()) or "" for name in ("gbs", "mbs"))
        if gbs and mbs:
            assert int(gbs) % (int(mbs) * degree(row, "dp")) == 0, row


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_seconds_tokens_and_flops_agree(path):
    for row in rows_of(path):
        step, tokens, gbs = (float(row.get(name) or 0) for name in ("step_s", "tok_s_gpu", "gbs"))
        if step and tokens and gbs:
            assert gbs * int(row["seq"]) / step / int(row["gpus"]) == pytest.approx(tokens, rel=0.01), row


def test_a_sweep_is_the_same_work_in_different_layouts():
    sweeps: dict[str, list[dict[str, str]]] = {}
    for path in LAYOUTS:
        for row in rows_of(path):
            if row.get("sweep"):
                sweeps.setdefault(row["sweep"], []).append(row)
    assert len(sweeps) >= 25
    for name, rows in sweeps.items():
        same = {(row["gpus"], row.get("gbs") or row["GBS"]) for row in rows}
        assert len(same) == 1, name
        names = ("tp", "pp", "vp", "cp", "dp", "mbs", "recompute", "sequence_parallel")
        layouts = {tuple(row.get(each) or row.get(each.upper(), "") for each in names) for row in rows}
        assert len(layouts) > 1, name


def test_the_best_products_are_below_the_peak_of_a_device_that_is_known():
    for row in rows_of(PLANNER / "published/matmul_peaks.csv"):
        peak = place_of(row["device"]).peak_tflops(row["dtype"])
        assert 0.5 < float(row["tflops"]) / peak < 0.9, row


def test_devices_without_fitted_runs_reach_the_best_products_that_were_found():
    found: dict[str, float] = {}
    for row in rows_of(PLANNER / "published/matmul_peaks.csv"):
        if row["dtype"] == "bf16":
            share = float(row["tflops"]) / place_of(row["device"]).peak_tflops("bf16")
            # The lower one is with all devices of a host busy.
            found[row["device"]] = min(share, found.get(row["device"], 1))
    rows = {name: row.matmul for name, row in ACCELERATORS.items() if row.matmul}
    same = {"gb300": "gb200", "mi300a": "mi300x", "mi350x": "mi355x", "pvc": "pvc-448"}
    assert rows == {name: pytest.approx(found[same.get(name, name)], abs=6e-4) for name in rows}
    assert {"mi250x", "mi300x", "pvc-448", "b200"} <= set(rows)
    assert not rows.keys() & {"v100", "a100", "h100", "h200", "gh200"}


def test_products_of_operators_are_their_shapes():
    rows = [row for row in rows_of(PLANNER / "published/operators_aceso.csv") if row["m"]]
    for row in rows:
        flops = 2 * int(row["m"]) * int(row["n"]) * int(row["k"])
        assert flops / float(row["forward_us"]) / 1e6 == pytest.approx(float(row["forward_tflops"]), abs=0.06), row
        assert float(row["forward_tflops"]) < place_of(row["device"]).peak_tflops("fp16"), row
    assert len(rows) > 200


@pytest.mark.parametrize("name", sorted(path.stem for path in (PLANNER / "envs").glob("*.yaml")))
def test_clusters_of_the_rows_are_places(name):
    place = place_of(name, root=PLANNER)
    assert place.levels[0].ranks == place.per_host
    assert place.peak_tflops("fp16") > 100
