"""At most so many ranks of a host write at the same time, and none waits for one that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from megads.checkpoint import save
from megads.checkpoint.host_writers import HostWriters
from megads.checkpoint.save import Saver
from megads.errors import CheckpointError
from tests.checkpoint.test_save import check_whole, names, snapshot
from tests.ranks import groups_of, run_ranks

RANKS = 4
HELD = """
import sys, time
from pathlib import Path
from megads.checkpoint.host_writers import HostWriters
with HostWriters(Path(sys.argv[1]), 1).turn(lambda: False):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def own_temporary_folder(tmp_path, monkeypatch):
    folder = tmp_path / "of-this-host"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def takes_a_turn(writers: HostWriters, within_s: float) -> bool:
    """Return whether a turn was there; after ``within_s`` it is given up."""
    until, late = time.monotonic() + within_s, [False]

    def given_up() -> bool:
        late.append(time.monotonic() >= until)
        return late[-1]

    with writers.turn(given_up):
        return not late[-1]


@pytest.mark.parametrize("most", [1, 3])
def test_so_many_turns_there_are(tmp_path, most, own_temporary_folder):
    def new() -> HostWriters:
        return HostWriters(tmp_path, most)

    held = [new().turn(lambda: False) for _ in range(most)]
    for turn in held:
        turn.__enter__()
    assert not takes_a_turn(new(), 0.1)
    assert takes_a_turn(HostWriters(tmp_path / "other", most), 60)  # another run's
    held[0].__exit__(None, None, None)
    assert takes_a_turn(new(), 60)
    for turn in held[1:]:
        turn.__exit__(None, None, None)
    assert takes_a_turn(new(), 60)


def test_without_a_bound_nobody_waits(tmp_path, own_temporary_folder):
    with HostWriters(tmp_path, 0).turn(lambda: False):
        assert takes_a_turn(HostWriters(tmp_path, 0), 60)
        assert names(own_temporary_folder) == []


def _raise_in(writers: HostWriters, folder: Path) -> None:
    with writers.turn(lambda: False):
        assert len(names(folder)) == 1
        raise OSError("full")


def test_a_turn_ends_with_an_error_and_nothing_is_left(tmp_path, own_temporary_folder):
    with pytest.raises(OSError, match="full"):
        _raise_in(HostWriters(tmp_path, 1), own_temporary_folder)
    assert names(own_temporary_folder) == []
    assert takes_a_turn(HostWriters(tmp_path, 1), 60)


@pytest.mark.interpreters
def test_the_turn_of_a_killed_process_is_free(tmp_path, own_temporary_folder):
    more = {**os.environ, "TMPDIR": str(own_temporary_folder)}
    with subprocess.Popen([sys.executable, "-c", HELD, tmp_path], stdout=subprocess.PIPE, text=True, env=more) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            assert not takes_a_turn(HostWriters(tmp_path, 1), 0.1)
        finally:
            other.kill()
    assert takes_a_turn(HostWriters(tmp_path, 1), 60)
    assert names(own_temporary_folder) == []


def test_who_waits_hears_that_the_save_was_given_up(tmp_path, own_temporary_folder):
    given_up, waited = threading.Event(), threading.Event()

    def asks() -> bool:
        waited.set()
        return given_up.is_set()

    def wait() -> None:
        with HostWriters(tmp_path, 1).turn(asks):
            pass

    with HostWriters(tmp_path, 1).turn(lambda: False):
        thread = threading.Thread(target=wait)
        thread.start()
        assert waited.wait(60)
        given_up.set()
        thread.join(60)
        assert not thread.is_alive()


def test_without_a_temporary_folder_all_write_and_it_is_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    writers = HostWriters(tmp_path, 2)
    for _ in range(2):
        with writers.turn(lambda: False):
            pass
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"SAVE_WRITERS=2: {tmp_path}/none/megads-")
    assert "No such file or directory; all ranks of this host write at the same time; set TMPDIR" in line


def _at_once(folder: Path, most: int) -> None:
    """Replace what writes a file by one that waits until as many write as may, and notes that more never do."""
    writing, done, write_file = folder / "writing", folder / "done", save.write_file
    for each in (writing, done):
        each.mkdir(exist_ok=True)

    def slow(path, entries):
        mine, until = writing / path.name, time.monotonic() + 60
        mine.touch()
        seen = [0]
        while seen[-1] < most and seen[-1] + len(names(done)) < RANKS:
            assert time.monotonic() < until, f"{seen[-1]} of {most} write"
            time.sleep(0.01)
            seen.append(len(names(writing)))
        for _ in range(3):  # one too many would come now
            time.sleep(0.01)
            seen.append(len(names(writing)))
        assert max(seen) <= most
        result = write_file(path, entries)
        (done / path.name).touch()
        mine.unlink()
        return result

    save.write_file = slow


def _bounded(folder: str, temporary: str, most: int, background: bool) -> None:
    import tempfile

    groups, before, tempfile.tempdir = groups_of(data=2, tensor=2), (save.write_file, tempfile.tempdir), temporary
    dist.barrier()
    try:
        _at_once(Path(folder), most or RANKS)
        saver = Saver(Path(folder) / "checkpoints", groups, writers=most)
        if background:
            saver.start(snapshot(groups, 3))
            path = saver.finish()
        else:
            path = saver.save(snapshot(groups, 3))
    finally:
        save.write_file, tempfile.tempdir = before
    check_whole(path)
    assert names(Path(folder) / "done") == [f"rank-0000{rank}.safetensors" for rank in range(RANKS)]


@pytest.mark.dist
def test_any_number_of_writers_gives_the_same_files(tmp_path):
    turns = tmp_path / "turns"  # of ranks; their pool may be made here, in the folder of the tests
    turns.mkdir()
    found = []
    for most, background in ((0, False), (1, True), (2, False), (3, True)):
        folder = tmp_path / f"{most}"
        folder.mkdir()
        run_ranks(RANKS, _bounded, str(folder), str(turns), most, background)
        path = folder / "checkpoints" / "iter_0000003"
        found.append({name: (path / name).read_bytes() for name in names(path)})
    assert len(found[0]) == RANKS + 1
    assert all(each == found[0] for each in found)
    assert names(turns) == []


def _one_fails(folder: str, temporary: str, background: bool) -> None:
    import tempfile

    groups, before, tempfile.tempdir = groups_of(data=2, tensor=2), (save.write_file, tempfile.tempdir), temporary
    saver, write_file = Saver(Path(folder), groups, writers=1), save.write_file
    wrote = []

    def fails(path, entries):
        if groups.rank == 1:
            raise OSError(5, "Input/output error")
        wrote.append(path)
        return write_file(path, entries)

    try:
        save.write_file = fails
        if background:
            saver.start(snapshot(groups, 2))
        with pytest.raises(CheckpointError, match=r"rank 1: .*Input/output error"):
            saver.finish() if background else saver.save(snapshot(groups, 2))
        assert len(wrote) == (groups.rank != 1), "the others wrote after it"
        save.write_file = write_file
        check_whole(saver.save(snapshot(groups, 3)))
    finally:
        save.write_file, tempfile.tempdir = before
    assert names(Path(folder)) == ["iter_0000003"]


@pytest.mark.dist
@pytest.mark.parametrize("background", [False, True])
def test_one_that_fails_passes_its_turn_on(tmp_path, background):
    turns = tmp_path / "turns"
    turns.mkdir()
    run_ranks(RANKS, _one_fails, str(tmp_path / "checkpoints"), str(turns), background)
    assert names(turns) == []
