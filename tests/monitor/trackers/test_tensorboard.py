"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megads.config.settings.log import TrackConfig
from megads.monitor.trackers.tensorboard import TensorBoard
from tests.monitor.trackers.rows import run_of, step

pytest.importorskip("tensorboard")

ALL = {
    "log_timers": True,
    "log_batch_size": True,
    "log_validation_ppl": True,
    "log_memory": True,
    "log_world_size": True,
}


def written(
    folder: Path, rows: list[dict[str, Any]], iteration: int = 0, name: str = "run", closed: bool = True, **track: Any
) -> TensorBoard:
    started = {"iteration": iteration, "samples": iteration * 8, "world_size": 4}
    board = TensorBoard(TrackConfig(**track), folder, name, run_dir=folder.parent / name, **started)
    for row in rows:
        board.write(row)
    if closed:
        board.close()
    return board


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    # Files of one second, which starts of a real run never have, are read in any order.
    return {tag: sorted((each.step, each.value) for each in events.Scalars(tag)) for tag in events.Tags()["scalars"]}


def expected(rows: list[dict[str, Any]], key: str, axis: str = "iteration") -> list[tuple[int, float]]:
    return [(row[axis], float(np.float32(row[key]))) for row in rows if key in row]


def test_tags_and_values_are_those_of_the_rows(tmp_path):
    rows = [*run_of(10), {"iteration": 10, "task/lambada/accuracy": 0.25, "consumed_samples": 80}]
    written(tmp_path, rows, **ALL)
    found = points(tmp_path)
    names = {
        "task/lambada/accuracy": "task/lambada/accuracy",
        "lm_loss": "lm loss",
        "learning_rate": "learning-rate",
        "weight_decay": "weight-decay",
        "global_batch_size": "batch-size",
        "loss_scale": "loss-scale",
        "grad_norm": "grad-norm",
        "step_time_s": "iteration-time",
        "time/forward_s": "forward-time",
        "valid_loss": "lm loss validation",
        "valid_loss/books": "lm loss validation/books",
    }
    for key, tag in names.items():
        assert found.pop(tag) == expected(rows, key)
        assert found.pop(f"{tag} vs samples") == expected(rows, key, "consumed_samples")
    ppl = [(row["iteration"], float(np.float32(math.exp(row["valid_loss"])))) for row in rows if "valid_loss" in row]
    assert found.pop("lm loss validation ppl") == ppl
    assert found.pop("lm loss validation ppl vs samples") == [(step * 8, value) for step, value in ppl]
    assert found.pop("mem-max-allocated-bytes") == expected(rows, "memory_bytes")
    assert found.pop("world-size") == [(i, 4.0) for i in range(1, 11)]
    assert found.pop("throughput/tokens_per_s") == expected(rows, "tokens_per_s")
    assert set(found) == {"lm loss validation ppl/books", "lm loss validation ppl/books vs samples"}


def test_what_is_not_asked_for_is_left_out(tmp_path):
    written(tmp_path, run_of(5), log_learning_rate=False, log_loss_scale=False)
    assert {tag for tag in points(tmp_path) if not tag.endswith(" vs samples")} == {
        *("lm loss", "lm loss validation", "lm loss validation/books"),
        *("grad-norm", "weight-decay", "throughput/tokens_per_s"),
    }


@pytest.mark.parametrize("died_at", [10, 14, 23])
def test_on_resume_every_step_has_one_point_of_the_run_that_goes_on(tmp_path, died_at):
    before = [{**row, **({"lm_loss": 100.0} if row["iteration"] > 10 else {})} for row in run_of(died_at)]
    written(tmp_path, before[:7])
    written(tmp_path, [row for row in before[7:] if row["iteration"] > 5], iteration=5)
    written(tmp_path, run_of(20, first=11), iteration=10)
    whole = run_of(20)
    found = points(tmp_path)
    for tag, key in (("lm loss", "lm_loss"), ("lm loss validation", "valid_loss"), ("grad-norm", "grad_norm")):
        assert found[tag] == expected(whole, key)
        assert found[f"{tag} vs samples"] == expected(whole, key, "consumed_samples")


def test_a_run_that_begins_anew_leaves_nothing_of_the_old_one(tmp_path):
    written(tmp_path, run_of(9))
    written(tmp_path, [], iteration=0)
    assert points(tmp_path) == {}


def test_points_that_a_kill_cut_off_go_and_those_before_stay(tmp_path):
    written(tmp_path, run_of(10))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    written(tmp_path, run_of(12, first=11), iteration=10)
    assert [step for step, _ in points(tmp_path)["lm loss"]] == list(range(1, 13))
    path.write_bytes(b"")
    written(tmp_path, [], iteration=10)
    assert not path.exists()


def test_what_a_checkpoint_has_behind_it_is_in_the_file_before_the_run_ends(tmp_path):
    board = written(tmp_path, run_of(5), closed=False)
    assert [step for step, _ in points(tmp_path)["lm loss"]] == [1, 2, 3, 4, 5]
    board.close()


def test_another_run_in_the_same_folder_keeps_its_points(tmp_path):
    written(tmp_path, run_of(9), name="other")
    written(tmp_path, run_of(3), name="this")
    written(tmp_path, [], iteration=0, name="this")
    assert [step for step, _ in points(tmp_path)["lm loss"]] == list(range(1, 10))


def test_numbers_that_are_none_leave_a_gap(tmp_path):
    written(tmp_path, [step(1), step(2, lm_loss=math.nan, grad_norm=math.inf), step(3)])
    found = points(tmp_path)
    assert [each for each, _ in found["lm loss"]] == [each for each, _ in found["grad-norm"]] == [1, 3]


def test_a_run_leaves_the_files_of_others_in_the_same_folder(tmp_path):
    # Names are often those of presets: what tells runs apart is their folder.
    settings = TrackConfig()
    for own in ("one", "two"):
        board = TensorBoard(
            settings, tmp_path / "tb", "7B", run_dir=tmp_path / own, iteration=0, samples=0, world_size=1
        )
        board.write(step(1))
        board.close()
    assert len(list((tmp_path / "tb").iterdir())) == 2
