"""What corrects predictions is read from run folders and reports of megads bench, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megads.config.run_folder import save_config
from megads.errors import ConfigError
from megads.monitor.measured import read_measured
from megads.monitor.run_state.outcome import Outcome, write_outcome
from megads.plan.time.anchor import anchored
from megads.plan.time.measured import MeasuredRates, MeasuredRun
from tests.plan.time.test_anchor import H100, NAME, run_of

MEASURED = {
    **{"step_s": 1.1, "tokens_per_s": 1e4, "memory_bytes": 1.0, "steps": 30, "work_s": 1.0, "scatter": 0.02},
    **{
        "data_s": 0.1,
        "forward_s": 0.3,
        "backward_s": 0.6,
        "communication_s": 0.0,
        "optimizer_s": 0.05,
        "other_s": 0.05,
    },
}


def folder_of(path: Path, **change: object) -> Path:
    run = run_of(1)
    save_config(run, {}, path / "config.yaml")
    given = {"device": NAME, "world_size": 1, "per_host": 1, "measured": MEASURED, **change}
    write_outcome(path, Outcome(0, "done", 31, "done", **given))  # type: ignore[arg-type]
    return path


def test_a_run_folder_has_steps_and_settings(tmp_path):
    found = read_measured(folder_of(tmp_path))
    assert isinstance(found, MeasuredRun)
    assert (found.device, found.world_size, found.per_host, found.steps) == (NAME, 1, 1, 30)
    assert (found.step_s, found.scatter) == (1.0, 0.02)
    assert found.parts["backward"] == 0.6
    assert found.run == run_of(1)
    for name in ("config.yaml", "outcome.json", "metrics.jsonl"):
        assert read_measured(tmp_path / name) == found
    assert anchored(H100, found).rates.source.startswith(f"anchored on {tmp_path}: matmul ")


@pytest.mark.parametrize(
    "change",
    [
        {"measured": {}},
        {"measured": {"memory_bytes": 7}},
        {"measured": {**MEASURED, "work_s": 0.0}},
        {"measured": {**MEASURED, "work_s": -1.0}},
        {"device": ""},
        {"world_size": 0},
    ],
)
def test_a_run_without_steps_is_refused(tmp_path, change):
    with pytest.raises(ConfigError, match=r"outcome\.json has no measured steps; anchor on a run") as found:
        read_measured(folder_of(tmp_path, **change))
    assert "\n" not in str(found.value)


def test_folders_that_are_no_runs_and_files_that_are_no_reports(tmp_path):
    def refused(path: Path, text: str | None, problem: str) -> None:
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match=problem) as found:
            read_measured(path)
        assert "\n" not in str(found.value)

    refused(tmp_path, None, "not a run folder, it has no config.yaml")
    refused(tmp_path / "none.json", None, "not found; pass a run folder, or a file of")
    path = tmp_path / "bench.json"
    refused(path, "{", "cannot be read as JSON")
    refused(path, "[1]", "not a report of `megads bench --json`")
    refused(path, '{"device": "cpu"}', "not a report of")
    refused(path, '{"device": 7, "parts": {}}', "not a report of")
    refused(path, '{"device": "cpu", "parts": {}, "form": "tiny"}', "whose rates are those of caches")
    row = '{"device": "x", "parts": {"matmul": {"status": "done", "rows": [%s]}}}'
    for bad in ("{}", "7", '{"shape": "a x b", "dtype": "bf16", "tflops": 1}', '{"shape": 7}'):
        refused(path, row % bad, "a row of `megads bench --json` lacks what it needs")
    wrong = '{"device": "x", "parts": {"training": {"status": "done", "rows": [{"settings": {"no": 1}}]}}}'
    refused(path, wrong, "a row of `megads bench --json` lacks what it needs")


def test_a_report_has_rates_and_models(tmp_path):
    run = run_of(8)
    big, small = 2**28, 2**12
    link = {"collective": "all_reduce", "group": "all ranks", "ranks": 8, "us": 1.0, "gb_per_s": 1.0}
    rows = {
        "matmul": [{"dtype": "bf16", "shape": "4096 x 8192 x 2048", "tflops": 700.0, "of_peak": 0.7, "seconds": 1.0}],
        "memory": [
            {"pattern": "fill", "gb_per_s": 9999.0},
            {"pattern": "copy", "gb_per_s": 2800.0},
            {"pattern": "add (triad)", "gb_per_s": 2900.0},
            {"pattern": "host to device, pinned", "gb_per_s": 9998.0},
        ],
        "collectives": [
            {**link, "bytes": big, "bus_gb_per_s": 300.0},
            {**link, "bytes": big, "bus_gb_per_s": 320.0, "collective": "all_gather"},
            {**link, "bytes": big, "bus_gb_per_s": 1.0, "collective": "all_to_all"},
            {**link, "bytes": small, "bus_gb_per_s": 0.1},
            {**link, "bytes": big, "bus_gb_per_s": 2.0, "ranks": 2, "group": "across hosts"},
        ],
        "training": [
            {
                **{"model": "7B", "ranks": 8, "step_s": 0.5, "steps": 4},
                "settings": run.model_dump(mode="json", exclude_defaults=True),
            },
            {"model": "of an older version", "step_s": 0.5},
        ],
    }
    parts = {name: {"status": "done", "rows": each} for name, each in rows.items()}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"device": NAME, "form": "full", "parts": parts}))
    found = read_measured(path)
    assert isinstance(found, MeasuredRates)
    assert found.products == (("bf16", 2.0 * 4096 * 8192 * 2048, 700.0),)
    assert found.memory_gb_s == 2900.0
    assert found.links_gb_s == {8: 320.0}
    (step,) = found.steps
    assert step.run == run
    assert (step.world_size, step.step_s, step.steps, step.device) == (8, 0.5, 4, NAME)
    place = anchored(H100, found)
    assert place.rates.source.startswith(f"anchored on {path}: matmul ")
    # A part that failed says nothing.
    parts["memory"]["status"] = "failed"
    path.write_text(json.dumps({"device": NAME, "form": "full", "parts": parts}))
    assert read_measured(path).memory_gb_s == 0.0  # type: ignore[union-attr]
