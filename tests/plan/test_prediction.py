"""What is predicted of a run: its line, its file, and what it does not claim."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from megads.plan.places.place import place_of
from megads.plan.places.rates import Rates
from megads.plan.prediction import PARTS, Prediction, predict, read_prediction, write_prediction
from megads.plan.time.step import step_time
from tests.plan.time.test_anchor import run_of

H100 = place_of("h100", root=None)
CPU = place_of("cpu", root=None)


def test_it_is_the_estimate_of_the_step():
    run = run_of(8, TP="2")
    found, step = predict(run, 8, 10**9, H100), step_time(run, 8, H100)
    assert (found.memory_bytes, found.step_s) == (10**9, step.step_s)
    assert found.tokens_per_s == pytest.approx(step.tokens / step.step_s)
    assert list(found.parts) == list(PARTS)
    assert sum(found.parts.values()) == pytest.approx(step.step_s)
    assert found.mfu == step.mfu_full
    causal = run.model_copy(update={"profile": run.profile.model_copy(update={"flops_causal": True})})
    assert predict(causal, 8, 0, H100).mfu == step.mfu_causal


def test_the_line_says_where_the_time_goes_and_how_far_off_such_lines_are():
    found = predict(run_of(1), 1, 10**9, H100)
    assert found.line().startswith("about ")
    assert " predicted (h100; on measured runs off by " in found.line()
    assert " tokens/s, mfu " in found.line()
    assert ": compute " in found.line()
    assert "communication" not in found.line()
    told = replace(found, error=0.063, worst_error=0.141).line()
    assert "(h100; on measured runs off by 6% on average, 14% in 95 of 100)" in told


def test_without_a_place_or_an_estimate_nothing_is_made_up():
    assert predict(run_of(1), 1, 7, None) == Prediction(7)
    assert Prediction(7).line() == ""
    run = run_of(1)
    t5 = run.model_copy(update={"model": run.model.model_copy(update={"family": "t5", "decoder_layers": 2})})
    assert predict(t5, 1, 7, H100).memory_bytes == 7


def test_an_anchored_cpu_has_seconds_and_no_share_of_a_peak():
    anchor = Rates(2.0, 2.0, 1.0, 2.0, "anchored on runs/x: products at 20G (40 steps)")
    found = predict(run_of(1), 1, 7, replace(CPU, rates=anchor))
    assert found.step_s > 0
    assert found.mfu == 0
    assert "predicted (anchored on runs/x), " in found.line()
    assert "mfu" not in found.line()


def test_the_file_is_read_as_it_was_written_or_not_at_all(tmp_path):
    assert read_prediction(tmp_path) == (Prediction(), "")
    given = replace(predict(run_of(1), 1, 10**9, H100), error=0.1)
    write_prediction(tmp_path, given)
    assert read_prediction(tmp_path) == (given, "")
    path = tmp_path / "predicted.json"
    text = path.read_text()
    for damaged in (text.replace('memory_bytes": 1', 'memory_bytes": 2'), text[:20], "[]\n", "{}", "\xff"):
        path.write_text(damaged, encoding="latin1")
        found, why = read_prediction(tmp_path)
        assert found == Prediction()
        assert why.startswith(f"{path}: no prediction to compare with: ")
        assert "\n" not in why
    path.write_text(json.dumps({"crc32": "0" * 8, "step_s": "1"}))
    assert read_prediction(tmp_path)[0] == Prediction()
