"""Starting again after ranks failed: when, on which hosts, and when not. The ranks are scripts of one line."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from megads.errors import ConfigError
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.nodes.memory import NodeMemory
from megads.launch.nodes.probe import Health
from megads.launch.preflight.checkpoint_start import Saved
from megads.launch.schedulers.allocation import Allocation
from megads.launch.supervise import restart
from megads.launch.supervise.restart import Restarts, can_be_reached, supervised
from megads.monitor.run_state.attempts import read_attempts

RANK = """
import json, os, pathlib, sys, time
folder, attempt, told = pathlib.Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
with open(folder / "ran", "a") as file:
    file.write(sys.argv[2] + " " + sys.argv[4] + "\\n")
for number in told.pop("damaged", []):
    path = folder / "checkpoints" / f"iter_{number:07d}"
    path.rename(path.with_name(path.name + ".damaged"))
saved = told.pop("saved", 0)
if saved:
    (folder / "checkpoints" / f"iter_{saved:07d}").mkdir(parents=True)
until = time.time() + told.pop("waits_s", 0)
while time.time() < until and not (folder / "stop").exists():
    time.sleep(0.02)
dies = told.pop("dies", 0)
if told:
    (folder / "outcome.json").write_text(json.dumps({"message": "", "iteration": 0, **told}))
if dies:
    os.kill(os.getpid(), dies)
"""
OK = {"exit_code": 0, "kind": "done"}
STOPPED = {"exit_code": 75, "kind": "stopped"}


def failed(kind="killed", host="b", iteration=0, **more):
    return {"exit_code": 1, "kind": kind, "host": host, "rank": 3, "iteration": iteration, "message": "gone", **more}


class Run:
    """A run whose attempts end as told."""

    def __init__(self, folder: Path, *ends: dict, hosts=("a", "b"), spare=(), restarts=3, ends_at=0.0, **more):
        self.folder, self.ends = folder, ends
        self.job = Restarts(
            folder, Saved(folder / "checkpoints"), os.environ, Allocation("none", hosts, 2, spare=spare),
            plan=self.plan, shrink=more.pop("shrink", self.shrink), max_restarts=restarts, ends_at=ends_at,
            answers=more.pop("answers", lambda host: True), memory=NodeMemory(folder / "nodes.jsonl", "cpu"),
            probe=more.pop("probe", lambda host, others: Health("broken" if spare else "unknown", "planted")),
        )  # fmt: skip

    def plan(self, allocation: Allocation, attempt: int) -> LaunchPlan:
        told = json.dumps(self.ends[min(attempt, len(self.ends) - 1)])
        hosts = ",".join(allocation.hosts)
        return LaunchPlan((sys.executable, "-c", RANK, str(self.folder), str(attempt), told, hosts), {})

    def shrink(self, allocation: Allocation) -> str:
        raise ConfigError("3 ranks do not divide GLOBAL_BATCH=8")

    def ran(self) -> list[str]:
        return (self.folder / "ran").read_text().splitlines()

    def attempts(self) -> list[dict]:
        return [asdict(each) for each in read_attempts(self.folder)]

    def log(self) -> str:
        return (self.folder / "log/run.log").read_text()


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(restart, "WAIT_S", 0.0)
    monkeypatch.setattr("megads.launch.supervise.watch.POLL_S", 0.02)
    monkeypatch.setattr("megads.launch.supervise.run.OUTCOME_WAIT_S", 0.1)


def test_three_failures_are_survived(tmp_path):
    run = Run(tmp_path, failed(saved=10), failed(saved=20), failed(saved=30), OK)
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b", "1 a,b", "2 a,b", "3 a,b"]
    rows = run.attempts()
    assert [row["began"] for row in rows] == [0, 10, 20, 30]
    assert [row["exit_code"] for row in rows] == [1, 1, 1, 0]
    assert rows[0]["kind"] == "killed"
    assert (rows[0]["rank"], rows[0]["host"], rows[0]["message"]) == (3, "b", "gone")
    assert "restart 1 of 3 from iteration 10" in run.log()


@pytest.mark.parametrize("end", [OK, STOPPED])
def test_what_ended_well_is_not_started_again(tmp_path, end):
    run = Run(tmp_path, end)
    assert run.job.run() == end["exit_code"]
    assert len(run.ran()) == 1


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    [
        ({"exit_code": 2, "kind": "wrong"}, 2, "the same would happen again"),
        (failed("import"), 1, "a package is missing or broken"),
    ],
)
def test_what_can_not_succeed_is_not_tried_again(tmp_path, end, code, reason):
    run = Run(tmp_path, end)
    assert run.job.run() == code
    assert len(run.ran()) == 1
    assert f"not restarted: {reason}" in run.log()


def test_the_number_of_restarts_is_a_limit(tmp_path):
    run = Run(tmp_path, *(failed(saved=10 * n) for n in range(1, 5)), restarts=2)
    assert run.job.run() == 1
    assert len(run.ran()) == 3
    assert "MAX_RESTARTS=2 is used up" in run.log()


def test_two_attempts_without_progress_are_the_last(tmp_path):
    run = Run(tmp_path, failed(saved=10), failed(), failed(), failed())
    assert run.job.run() == 1
    assert len(run.ran()) == 3
    assert "two attempts in a row did not get beyond iteration 10" in run.log()


def test_progress_without_a_checkpoint_counts(tmp_path):
    run = Run(tmp_path, failed(iteration=3), failed(iteration=5), failed(iteration=8), OK)
    assert run.job.run() == 0


def before(folder: Path, *iterations: int) -> Saved:
    """Return what a run has saved whose launcher takes the newest checkpoint for valid."""
    for iteration in iterations:
        (folder / f"checkpoints/iter_{iteration:07d}").mkdir(parents=True)
    return Saved(folder / "checkpoints", max(iterations))


def test_attempts_that_go_on_from_an_older_checkpoint_than_planned_come_further(tmp_path):
    ends = [failed(iteration=70, damaged=[100]), failed(iteration=90), failed(iteration=95), OK]
    run = Run(tmp_path, *ends)
    run.job.saved = before(tmp_path, 50, 100)
    assert run.job.run() == 0
    assert [(row["began"], row["reached"]) for row in run.attempts()][:3] == [(50, 70), (50, 90), (50, 95)]
    assert "restart 1 of 3 from iteration 50" in run.log()


def test_what_was_reached_before_the_ranks_went_back_further_does_not_count(tmp_path):
    ends = [failed(), failed(iteration=70, damaged=[100]), failed(iteration=90), OK]
    run = Run(tmp_path, *ends)
    run.job.saved = before(tmp_path, 50, 100)
    assert run.job.run() == 0
    assert [(row["began"], row["reached"]) for row in run.attempts()][:3] == [(100, 100), (50, 70), (50, 90)]


@pytest.mark.parametrize(("ends", "code"), [((70, 90, 95, 0), 0), ((70, 70, 70, 0), 1)])
def test_the_ranks_know_where_they_were_also_when_nothing_was_renamed(tmp_path, ends, code):
    run = Run(tmp_path, *(failed(iteration=reached) if reached else OK for reached in ends))
    run.job.saved = before(tmp_path, 100)
    assert run.job.run() == code


def test_out_of_memory_twice_at_the_same_place_is_the_end(tmp_path):
    run = Run(tmp_path, failed("memory", iteration=7), failed("memory", iteration=7), OK)
    assert run.job.run() == 1
    assert "out of memory twice after iteration 7" in run.log()
    other = tmp_path / "other"
    other.mkdir()
    assert Run(other, failed("memory", iteration=7), failed("memory", iteration=9), OK).job.run() == 0


def test_a_spare_host_takes_the_place_of_the_one_that_failed(tmp_path):
    hosts = ("a", "b.cluster", "c")
    run = Run(tmp_path, failed(saved=1), failed("hang", "c", saved=2), OK, hosts=hosts, spare=("d", "e"))
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b.cluster,c", "1 a,d,c", "2 a,d,e"]
    assert "host b.cluster is excluded after: gone; it fails a check (planted); d replaces it" in run.log()
    assert [row["excluded"] for row in run.attempts()] == [("b.cluster",), ("c",), ()]


@pytest.mark.parametrize("end", [failed("lost", ""), failed("killed", "elsewhere"), {"dies": signal.SIGKILL}])
def test_a_failure_of_no_known_host_retires_none(tmp_path, end):
    run = Run(tmp_path, end, OK, spare=("d",))
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b", "1 a,b"]


@pytest.mark.parametrize("end", [failed("lost", ""), {"dies": signal.SIGKILL}])
def test_a_host_that_went_down_without_a_word_is_found_and_replaced(tmp_path, end):
    run = Run(tmp_path, end, OK, hosts=("a", "b", "c"), spare=("d",), answers=lambda host: host != "b")
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b,c", "1 a,d,c"]


def test_without_spares_a_host_that_answers_is_used_again(tmp_path):
    run = Run(tmp_path, failed(), OK, shrink=lambda allocation: pytest.fail("not asked for"))
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b", "1 a,b"]


def test_fewer_hosts_go_on_when_one_is_gone_and_the_batch_can_stay(tmp_path):
    run = Run(
        tmp_path, failed(), OK, hosts=("a", "b", "c"),
        answers=lambda host: host != "b", shrink=lambda allocation: "DP 6 -> 4",
    )  # fmt: skip
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b,c", "1 a,c"]
    assert "host b is excluded after: gone; it cannot be reached; resuming on 2 hosts: DP 6 -> 4" in run.log()


def test_one_of_two_hosts_is_left_out_when_it_answered_before(tmp_path, monkeypatch):
    """There is no third one that could show whether silence means anything; its own earlier answer does."""
    monkeypatch.setattr(restart, "this_host", lambda: "a")
    asked = []

    def answers(host):
        asked.append(host)
        return len(asked) == 1

    run = Run(tmp_path, failed(), OK, answers=answers, shrink=lambda allocation: "DP 4 -> 2")
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b", "1 a"]
    assert "host b is excluded after: gone; it cannot be reached; resuming on 1 host: DP 4 -> 2" in run.log()
    assert set(asked) == {"b"}


@pytest.mark.parametrize("end", [failed(), failed(host="", kind="")])
def test_one_of_two_hosts_that_never_answered_is_used_again(tmp_path, monkeypatch, end):
    monkeypatch.setattr(restart, "this_host", lambda: "a")
    run = Run(tmp_path, end, OK, answers=lambda host: False, shrink=lambda allocation: pytest.fail("not asked for"))
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b", "1 a,b"]


def test_fewer_hosts_do_not_go_on_with_another_batch(tmp_path):
    run = Run(tmp_path, failed(), OK, hosts=("a", "b", "c"), answers=lambda host: host != "b")
    assert run.job.run() == 1
    assert "b cannot be reached, and without it: 3 ranks do not divide GLOBAL_BATCH=8" in run.log()


def test_where_no_host_answers_that_says_nothing_about_one(tmp_path):
    run = Run(tmp_path, failed(), OK, hosts=("a", "b", "c"), answers=lambda host: False)
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b,c", "1 a,b,c"]


@pytest.mark.parametrize(("saved", "code"), [(10, 75), (0, 1)])
def test_an_allocation_that_ends_is_not_started_in(tmp_path, saved, code):
    run = Run(tmp_path, failed(saved=saved), OK, ends_at=time.time() + 60)
    assert run.job.run() == code
    assert "not restarted: the allocation ends at" in run.log()


@contextmanager
def soon(has_come: Callable[[], bool], number: signal.Signals) -> Iterator[None]:
    """Send this process a signal as soon as something has come: before that nobody may listen to it."""

    def ask() -> None:
        end = time.monotonic() + 60
        while not has_come() and time.monotonic() < end:
            time.sleep(0.02)
        if has_come():
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_stop_request_during_an_attempt_that_fails_is_honoured(tmp_path):
    run = Run(tmp_path, failed(saved=10, waits_s=60), OK)
    with soon((tmp_path / "ran").exists, signal.SIGUSR1):
        assert run.job.run() == 75
    assert len(run.ran()) == 1
    assert "not restarted: a stop was requested" in run.log()


@pytest.mark.parametrize("by", ["signal", "file"])
def test_a_stop_request_between_two_attempts_is_honoured(tmp_path, monkeypatch, by):
    monkeypatch.setattr(restart, "WAIT_S", 20.0)
    run = Run(tmp_path, failed(saved=10), OK)

    def ask():
        end = time.monotonic() + 60
        while "restart 1" not in (run.log() if (tmp_path / "log/run.log").exists() else ""):
            assert time.monotonic() < end
            time.sleep(0.02)
        if by == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            (tmp_path / "stop").touch()

    thread = threading.Thread(target=ask)
    thread.start()
    assert run.job.run() == 75
    thread.join()
    assert len(run.ran()) == 1


def test_an_abort_is_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.launch.supervise.watch.KILL_AFTER_S", 0.2)
    run, heard = Run(tmp_path, failed(saved=10, waits_s=60), OK), threading.Event()
    monkeypatch.setattr("megads.launch.supervise.watch.Watch._ask_to_stop", lambda self: heard.set())
    with soon((tmp_path / "ran").exists, signal.SIGINT), soon(heard.is_set, signal.SIGINT):
        assert run.job.run() == 130
    assert len(run.ran()) == 1


def test_files_of_an_earlier_run_do_not_count(tmp_path):
    (tmp_path / "stop").touch()
    (tmp_path / "outcome.json").write_text(json.dumps(failed()))
    run = Run(tmp_path, {}, {}, OK)
    assert run.job.run() == 1
    assert [row["kind"] for row in run.attempts()] == ["", ""]


def test_a_rank_in_place_gets_a_launcher_that_stays():
    plan = supervised(LaunchPlan(("x",), {"MEGADS_IN_PLACE": "1", "MEGADS_RANK": "0"}, in_place=True))
    assert not plan.in_place
    assert plan.env == {"MEGADS_RANK": "0"}


def test_a_refused_connection_is_an_answer():
    assert can_be_reached("127.0.0.1")
    assert not can_be_reached("no-such-host.invalid")


def test_a_suspect_that_passes_a_check_is_kept(tmp_path):
    run = Run(tmp_path, failed(saved=1), OK, spare=("c",), probe=lambda host, others: Health("healthy", "7 stages"))
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b", "1 a,b"]
    assert "host b passes a check (7 stages) and is kept" in run.log()
    assert [row["excluded"] for row in run.attempts()] == [(), ()]


def test_a_host_that_is_named_twice_is_left_out_although_it_passes_a_check(tmp_path):
    ends = [failed("error", message="CUDA error: uncorrectable ECC error encountered", saved=n) for n in (1, 2)]
    run = Run(tmp_path, *ends, OK, spare=("c",), probe=lambda host, others: Health("healthy", "7 stages"))
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b", "1 a,b", "2 a,c"]
    assert "it is known for failures (failed " in run.log()
    assert [row["cause"] for row in run.attempts()] == ["node", "node", ""]


def test_a_host_whose_rank_hangs_twice_is_kept_while_it_passes_the_check(tmp_path):
    """A program that hangs in one rank does so on every host: nobody but the check speaks against this one."""
    ends = [failed("hang", message="no progress for 600 s: rank 3 host b did not answer", saved=n) for n in (1, 2)]
    run = Run(tmp_path, *ends, OK, spare=("c",), probe=lambda host, others: Health("healthy", "7 stages"))
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b", "1 a,b", "2 a,b"]
    assert [row["cause"] for row in run.attempts()] == ["node", "node", ""]
    assert run.job.memory.bad_hosts() == {}


def test_a_host_whose_copies_of_weights_differ_is_left_out_although_it_passes_a_check(tmp_path):
    told = "step 4: replica check: rank 3 (b) differs from 3 other copies of final_norm.weight"
    run = Run(tmp_path, failed("replica", message=told, saved=1), OK, spare=("c",),
              probe=lambda host, others: Health("healthy", "7 stages"))  # fmt: skip
    assert run.job.run() == 0
    assert run.ran() == ["0 a,b", "1 a,c"]
    assert "its copies of weights are not those of the others; c replaces it" in run.log()
    assert [row["cause"] for row in run.attempts()] == ["node", ""]
    assert run.job.memory.bad_hosts() == {}  # once is not enough for other jobs


def test_a_memory_that_cannot_be_written_is_reported_once(tmp_path):
    (tmp_path / "nodes.jsonl").mkdir()
    run = Run(tmp_path, failed(saved=1), failed(saved=2), OK, probe=lambda host, others: Health("healthy", "4 stages"))
    assert run.job.run() == 0
    assert run.log().count("nodes.jsonl: Is a directory; failures of hosts are not kept for later jobs") == 1


@pytest.mark.parametrize("message", ["CUDA out of memory", "[Errno 5] Input/output error", "DUE TO PREEMPTION"])
def test_no_host_is_blamed_for_memory_files_or_the_time(tmp_path, message):
    run = Run(tmp_path, failed("error", message=message, saved=1), OK, spare=("c",))
    run.job.run()
    assert {line.split()[1] for line in run.ran()} == {"a,b"}


def test_a_run_waits_until_its_disk_takes_files_again(tmp_path, monkeypatch):
    full = failed("wrong", message="checkpoints: No space left on device; free some space", saved=1) | {"exit_code": 2}
    answers = [False, False, True]
    monkeypatch.setattr(restart, "is_writable", lambda folder: answers.pop(0) if answers else True)
    run = Run(tmp_path, full, OK)
    assert run.job.run() == 0
    assert [row["cause"] for row in run.attempts()] == ["filesystem", ""]
    monkeypatch.setattr(restart, "is_writable", lambda folder: False)
    monkeypatch.setattr(restart, "STORAGE_WAIT_S", 0.0)
    (tmp_path / "again").mkdir()
    run = Run(tmp_path / "again", full, OK)
    assert run.job.run() == 2
    assert "again cannot be written" in run.log()


def test_attempts_without_progress_are_a_regression(tmp_path):
    run = Run(tmp_path, failed(saved=10), failed(), failed(), failed())
    assert run.job.run() == 1
    assert [row["cause"] for row in run.attempts()] == ["unknown", "unknown", "regression"]
    assert run.attempts()[-1]["verdict"].startswith(
        "two attempts in a row did not get beyond iteration 10; the last one:"
    )
