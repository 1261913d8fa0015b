"""Which panels a run gets, and where marks stand."""

import pytest

from megads.errors import ConfigError
from megads.monitor.plots.drawing import draw
from tests.monitor.plots.made import rows_of
from tests.monitor.plots.test_drawing import names, run_of


def test_values_that_change_get_a_chart_of_their_own(tmp_path):
    rows = [{**row, "weight_decay": 0.1 + row["iteration"] / 1000, "loss_scale": 2.0} for row in rows_of(40, every=99)]
    shown = names(draw([run_of(tmp_path, rows)], most=700))
    assert "weight_decay" in shown
    assert "loss_scale" not in shown


def test_equal_model_and_hardware_flops_are_one_line(tmp_path):
    for hardware, keys in (
        (120.5, ("tflops_per_device",)),
        (150.0, ("tflops_per_device", "hardware_tflops_per_device")),
    ):
        rows = rows_of(40, mfu=None, hardware_tflops_per_device=hardware)
        drawing = draw([run_of(tmp_path / str(hardware), rows)], most=700)
        assert drawing.charts[names(drawing).index("tflops")].keys == keys


def test_without_a_known_peak_flops_stand_for_the_mfu(tmp_path):
    assert "tflops" in names(draw([run_of(tmp_path, rows_of(40, mfu=None))], most=700))


def test_chosen_keys_are_panels_or_keys_of_the_file(tmp_path):
    run = run_of(tmp_path, rows_of(60, energy_kwh=1.5))
    assert names(draw([run], keys=["lr", "energy_kwh", "valid_loss/*"], most=9)) == ["lr", "energy_kwh", "valid_loss/*"]
    with pytest.raises(ConfigError, match="--keys los: no run has such a key; panels are loss, validation"):
        draw([run], keys=["los"], most=9)


def test_layers_of_one_run_have_lines_in_their_order_and_no_more_than_a_legend_holds(tmp_path):
    ranges = {"iteration": 40, **{f"activation_max/layers.{index}": 1.0 + index for index in range(40)}}
    run = run_of(tmp_path / "a", [*rows_of(40), ranges])
    charts = draw([run], most=700).charts
    (chart,) = [chart for chart in charts if chart.panel.name == "activations"]
    assert [int(key.rpartition(".")[2]) for key in chart.keys] == [0, 4, 9, 13, 17, 22, 26, 30, 35, 39]
    assert "activations" not in names(draw([run, run_of(tmp_path / "b", rows_of(40))], most=700))


def test_tasks_have_panels_of_points_that_no_hole_divides(tmp_path):
    rows = rows_of(60)
    rows += [
        {"iteration": step, "task/wikitext103/ppl": 9.0, "task/wikitext103/adjusted_ppl": 20.0} for step in (30, 60)
    ]
    rows += [{"iteration": 60, "task/lambada/accuracy": 0.25, "task/lambada/ppl": 7.0}]
    drawing = draw([run_of(tmp_path, sorted(rows, key=lambda row: row["iteration"]))], most=700)
    charts = dict(zip(names(drawing), drawing.charts, strict=True))
    shown = {"task/wikitext103/ppl", "task/wikitext103/adjusted_ppl", "task/lambada/ppl"}
    assert set(charts["tasks"].keys) == shown
    assert charts["accuracy"].keys == ("task/lambada/accuracy",)
    assert all(curve.sparse for curve in charts["tasks"].curves)


def test_marks_stand_where_steps_were_skipped_or_taken_back_the_strongest_only(tmp_path):
    rows = rows_of(100, every=999)
    for row in rows:
        row["skipped_iterations"] = (row["iteration"] >= 30) + (row["iteration"] >= 70)
        row["rejected_iterations"] = (row["iteration"] >= 40) + (row["iteration"] >= 90)
        row["skipped_iterations"] += row["rejected_iterations"]
    rows.append({"iteration": 90, "rolled_back_to": 80, "rollbacks": 1})
    rows.append({"iteration": 20, "passed_over_iterations": 5, "consumed_samples": 160})
    drawing = draw([run_of(tmp_path, rows)], most=700)
    found = {name: places.tolist() for name, places in drawing.marks[0].items()}
    assert found == {"skipped": [30, 70], "rejected": [40], "rolled back": [90]}
    assert drawing.skipped_ranges[0] == [(16, 20)]
