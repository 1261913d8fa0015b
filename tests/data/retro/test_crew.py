"""Processes that share blocks: every block once, errors of any of them in one line, in any order of arrival."""

import io
import multiprocessing
import os
import signal
import time

import pytest

from megads.data.preprocess.team import EndedByLeader
from megads.data.retro.blocks import Block
from megads.data.retro.crew import MEETING, run_crew
from megads.errors import DataError

FORK = multiprocessing.get_context("fork")


def _blocks(folder, count):
    return [Block(i, i + 1, folder / f"{i}") for i in range(count)]


def _work(crew):
    """Two stages and a decision; each block notes who made it."""
    seven = crew.agree(lambda: 7)
    assert seven == 7

    def make(block, tick):
        tick(len(block))
        with block.path.open("a") as file:
            file.write(f"{crew.rank}\n")

    first = crew.stage("first", lambda: _blocks(crew.folder, 5), make)
    crew.alone(lambda: (crew.folder / "between").touch())
    (second,) = {crew.stage("second", lambda: [], make)}
    assert (crew.folder / "between").exists()
    return first, second


@pytest.mark.parametrize("workers", [1, 3])
def test_local_processes_share_the_blocks(tmp_path, workers):
    stream = io.StringIO()
    assert run_crew(tmp_path, 0, 1, workers, stream, _work) == (5, 0)
    assert [(tmp_path / f"{i}").read_text() for i in range(5)] == [f"{i % workers}\n" for i in range(5)]
    assert not (tmp_path / MEETING).exists()
    assert not (tmp_path / ".lock").exists()


def _rank(folder, rank, size, delay, answers):
    time.sleep(delay)
    try:
        for _ in range(2):  # two crews, one after the other, as validation and repair
            found = run_crew(folder, rank, size, 1, io.StringIO(), _work)
        answers.put((rank, found))
    except (DataError, EndedByLeader) as error:
        answers.put((rank, str(error) or type(error).__name__))


@pytest.mark.parametrize("late", [0, 1])
def test_ranks_of_a_launcher_meet_in_the_folder(tmp_path, late):
    answers = FORK.Queue()
    ranks = [FORK.Process(target=_rank, args=(tmp_path, r, 2, 0.5 * (r == late), answers)) for r in range(2)]
    for process in ranks:
        process.start()
    found = dict(answers.get(timeout=60) for _ in ranks)
    for process in ranks:
        process.join()
    assert found == {0: (5, 0), 1: None}
    assert sorted((tmp_path / "0").read_text().split()) == ["0", "0"]
    assert sorted((tmp_path / "1").read_text().split()) == ["1", "1"]


def test_an_error_of_any_process_is_raised_by_the_first(tmp_path):
    for bad in (0, 2):

        def fail(block, tick, bad=bad):
            if block.start == bad:
                raise DataError(f"block {bad} is broken")

        def work(crew, fail=fail):
            return crew.stage("all", lambda: _blocks(crew.folder, 3), fail)

        with pytest.raises(DataError, match=rf"^block {bad} is broken$"):
            run_crew(tmp_path, 0, 1, 3, io.StringIO(), work)

    def fail_alone(crew):
        crew.alone(lambda: (_ for _ in ()).throw(DataError("no space")))
        return crew.stage("all", lambda: [], lambda block, tick: None)

    with pytest.raises(DataError, match=r"^no space$"):
        run_crew(tmp_path, 0, 1, 3, io.StringIO(), fail_alone)


def test_a_worker_that_is_killed_is_named(tmp_path):
    def die(crew):
        if crew.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return crew.stage("all", lambda: _blocks(crew.folder, 3), lambda block, tick: None)

    with pytest.raises(DataError, match="worker 1 ended: SIGKILL; rerun the same command to resume"):
        run_crew(tmp_path, 0, 1, 2, io.StringIO(), die)


def test_progress_is_reported_with_an_eta(tmp_path, monkeypatch):
    monkeypatch.setattr("megads.data.retro.crew._FIRST_S", 0.0)
    monkeypatch.setattr("megads.data.retro.crew._EVERY_S", 0.0)
    stream = io.StringIO()
    run_crew(tmp_path, 0, 1, 1, stream, _work)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("megads: first: 1 of 5 rows, ")
    assert ", ETA " in lines[0]
    assert lines[-1].startswith("megads: first: 5 rows in 5 blocks, ")
