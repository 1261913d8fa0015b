import json
import os
import time

import pytest

from megads.cli.runs import table
from megads.monitor.columns import read_columns
from megads.monitor.run_state.follow import Follower
from megads.monitor.run_state.outcome import Heartbeat, Outcome, write_heartbeat, write_outcome
from megads.monitor.run_state.runs import MOST_TAIL, RunFacts, facts_of, find_runs, last_rows
from tests.monitor.plots.made import make_run, rows_of, step_row, write_rows

NOW = time.time()


def beat(**given):
    return Heartbeat(
        **{"iteration": 3, "phase": "step", "since": NOW - 1, "time": NOW, "pid": 1, "host": "n1", **given}
    )


def old(folder, seconds):
    for path in folder.rglob("*"):
        os.utime(path, (NOW - seconds, NOW - seconds))


@pytest.mark.parametrize(
    ("outcome", "state", "why"),
    [
        (Outcome(0, "done", 9, "done"), "done", ""),
        (Outcome(75, "asked to stop; saved at iteration 4", 4, "stopped"), "stopped", "asked to stop; saved"),
        (
            Outcome(1, "Traceback\nrank 1: out of memory", 4, "memory", 1, "n2"),
            "failed",
            "memory: rank 1: out of memory",
        ),
    ],
)
def test_an_ended_run_is_as_its_outcome_says(tmp_path, outcome, state, why):
    make_run(tmp_path, rows_of(4))
    write_heartbeat(tmp_path, beat())
    write_outcome(tmp_path, outcome)
    facts = facts_of(tmp_path, NOW)
    assert facts.state == state
    assert facts.why.startswith(why)


@pytest.mark.parametrize(
    ("heartbeat", "age", "state", "why"),
    [
        (beat(), 0, "running", "in step"),
        (beat(since=NOW - 100, phase="save"), 0, "running", "in save for 1m40s"),
        (beat(since=NOW - 9000), 0, "hung", "in step for 2h30m"),
        (beat(time=NOW - 7200, since=NOW - 7300), 7200, "lost", "in step; no heartbeat of rank 0 on n1 for 2h00m"),
        (beat(time=NOW + 7200, since=NOW + 7200), 0, "running", "in step"),  # another clock
    ],
)
def test_a_run_without_an_outcome_is_as_its_heartbeat_says(tmp_path, heartbeat, age, state, why):
    make_run(tmp_path, rows_of(4))
    write_heartbeat(tmp_path, heartbeat)
    old(tmp_path, age)
    facts = facts_of(tmp_path, NOW)
    assert (facts.state, facts.why) == (state, why)


def test_a_run_that_has_not_begun(tmp_path):
    (tmp_path / "submitted.yaml").write_text("name: a\n")
    assert facts_of(tmp_path, NOW).state == "not started"
    make_run(tmp_path, rows_of(4)).unlink()
    assert facts_of(tmp_path, NOW).why == "prepared, but no rank started"
    (tmp_path / "log").mkdir()
    (tmp_path / "log/run.log").write_text("checking\n")
    assert facts_of(tmp_path, time.time()).state == "starting"


def test_the_numbers_are_those_of_the_last_rows(tmp_path):
    rows = rows_of(60)
    make_run(tmp_path / "a", rows, TP="2", ZERO_STAGE="1", TRAIN_ITERS="60")
    facts = facts_of(tmp_path / "a", NOW)
    assert (facts.step, facts.total) == (60, 60)
    assert facts.loss == rows[-1]["lm_loss"]
    assert facts.valid_loss == rows[50]["valid_loss"]
    assert facts.layout.startswith("TP2")
    assert facts.layout.endswith("Z1")
    assert facts.model.startswith("llama ")


@pytest.mark.parametrize(
    "broken",
    [
        ("config.yaml", "{ no yaml"),
        ("config.yaml", "[1, 2]"),
        ("metrics.jsonl", "\0\0\0\n{half"),
        ("heartbeat.json", "{"),
        ("heartbeat.json", "[]"),
        ("outcome.json", "{"),
        ("outcome.json", '"done"'),
    ],
)
def test_a_broken_file_is_never_fatal(tmp_path, broken):
    make_run(tmp_path, rows_of(4))
    (tmp_path / broken[0]).write_text(broken[1])
    old(tmp_path, 10_000)
    assert facts_of(tmp_path, NOW).state in ("broken", "lost")


def test_only_folders_of_runs_are_found(tmp_path):
    for name in ("b", "a"):
        write_rows(tmp_path / name, rows_of(1))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert [path.name for path in find_runs(tmp_path)] == ["a", "b"]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]


def test_a_huge_file_is_read_from_its_end_only(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with open(path, "w") as file:
        file.seek(1 << 40)  # bytes that no disk has
        file.write("\n" + "".join(json.dumps(row) + "\n" for row in rows_of(300)))
    started = time.perf_counter()
    steps, validation = last_rows(path)
    assert time.perf_counter() - started < 60
    assert (steps[-1]["iteration"], validation["iteration"]) == (300, 300)


def test_a_validation_far_from_the_end_is_looked_for_but_not_through_all_of_the_file(tmp_path):
    rows = rows_of(3000, every=9999)
    rows.insert(1500, {"iteration": 1500, "valid_loss": 2.5})
    assert last_rows(write_rows(tmp_path / "a", rows))[1]["valid_loss"] == 2.5
    rows = [{"iteration": 1, "valid_loss": 2.5}, *rows_of(MOST_TAIL // 400, every=10**9)]
    assert last_rows(write_rows(tmp_path / "b", rows))[1] == {}


def test_hundreds_of_runs_are_listed_soon(tmp_path):
    path = make_run(tmp_path / "r0", rows_of(200))
    for number in range(1, 300):
        folder = tmp_path / f"r{number}"
        folder.mkdir()
        os.link(path, folder / "metrics.jsonl")
        os.link(path.with_name("config.yaml"), folder / "config.yaml")
    started = time.process_time()
    assert len([facts_of(folder) for folder in find_runs(tmp_path)]) == 300
    assert time.process_time() - started < 4


FACTS = [
    RunFacts("runs/7B", "running", "in step", 120, 5000, 2.5, 2.6, 312e3, 0.381, 2.0, "llama 32x4096", "TP2 DP4 Z1"),
    RunFacts("runs/a-run-with-a-long-name", "failed", "memory: rank 3 ran out of it, and a lot more to say", 7),
]


@pytest.mark.parametrize("width", [None, 200, 100, 80, 60, 40])
def test_the_table_is_aligned_and_fits(width):
    lines = table(FACTS, width)
    assert len(lines) == 3
    assert len({line.index(word) for line, word in zip(lines, ("state", "running", "failed"), strict=True)}) == 1
    if width:
        assert max(map(len, lines)) <= width
    assert ("llama" in lines[1]) == (width is None or width >= 100)
    assert "120/5000" in lines[1]


def test_a_number_that_no_float_holds_is_none(tmp_path):
    """Found by benchmarks/fuzz.py, seed 77."""
    big = 10**400
    make_run(tmp_path, [step_row(1, 9), *({**step_row(2, 9), key: big} for key in ("tokens_per_s", "mfu", "lm_loss"))])
    facts = facts_of(tmp_path, NOW)
    assert facts.tokens_per_s is not None
    assert facts.tokens_per_s < 1e18
    for row in ({**step_row(3, 9), "lm_loss": big, "valid_loss": big}, {**step_row(3, 9), "iteration": big}):
        path = write_rows(tmp_path, [row])
        Follower(path).poll()
        assert "lm_loss" in read_columns(path, lambda key: True)
