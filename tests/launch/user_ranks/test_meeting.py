"""How ranks that the user started find rank 0: on one host, on several, and when somebody is missing."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from megads.cluster.hosts import this_host
from megads.cluster.ranks import RankInfo
from megads.errors import LaunchError
from megads.launch.user_ranks.meeting import Lead, MeetingPoint, launch_key, starting_process, wait_for_message


@pytest.fixture(params=["one host", "several hosts"])
def place(request, tmp_path):
    """Give rank 0's place of a launch of three ranks; ranks that do not know their local size take several hosts."""
    local = 3 if request.param == "one host" else 0
    return MeetingPoint(RankInfo(0, 3, 0, local, "Open MPI"), os.urandom(8).hex(), tmp_path, join_s=20.0)


def of_rank(place: MeetingPoint, rank: int, **changes: object) -> MeetingPoint:
    return replace(place, info=replace(place.info, rank=rank, local_rank=rank, **changes))


def asking(place: MeetingPoint, answers: dict[int, object]) -> threading.Thread:
    def run() -> None:
        try:
            answers[place.info.rank] = wait_for_message(place)
        except (EOFError, LaunchError) as error:
            answers[place.info.rank] = error

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_every_rank_hears_the_same(place):
    answers: dict[int, object] = {}
    threads = [asking(of_rank(place, rank), answers) for rank in (2, 1)]  # before rank 0 is there
    lead = Lead(place)
    assert lead.gather() == [this_host()] * 3
    lead.send({"argv": ["x"], "env": {"A": "1"}})
    for thread in threads:
        thread.join(20)
    assert answers == {rank: {"argv": ["x"], "env": {"A": "1"}} for rank in (1, 2)}
    assert list(place.folder.iterdir()) == []


def test_ranks_hear_at_once_that_rank_0_is_gone(place):
    answers: dict[int, object] = {}
    lead = Lead(place)
    threads = [asking(of_rank(place, rank), answers) for rank in (1, 2)]
    lead.gather()
    lead.close()
    for thread in threads:
        thread.join(20)
    assert [type(answers[rank]) for rank in (1, 2)] == [EOFError, EOFError]


def test_ranks_that_do_not_come_are_named(place):
    notes: list[str] = []
    lead = Lead(replace(place, join_s=0.3, note=notes.append))
    with pytest.raises(LaunchError, match=r"2 of 3 ranks \(1, 2\) did not join within 0.3 s.*unset them"):
        lead.gather()
    lead.close()


def test_a_rank_without_rank_0_says_where_it_looked(place, monkeypatch):
    monkeypatch.setattr("megads.launch.user_ranks.meeting.GRACE_S", 0.0)
    with pytest.raises(LaunchError, match=f"rank 1 of 3 on {this_host()} does not find rank 0 "):
        wait_for_message(of_rank(replace(place, join_s=0.1), 1))


def test_twins_and_other_counts_are_told(place):
    answers: dict[int, object] = {}
    lead = Lead(place)
    twins = [asking(of_rank(place, 1), answers) for _ in range(2)]
    with pytest.raises(LaunchError, match="duplicate rank 1 of 3"):
        lead.gather()
    lead.close()
    lead = Lead(place)
    other = asking(of_rank(place, 1, world_size=4, local_size=4 if place.info.local_size else 0), answers)
    with pytest.raises(LaunchError, match="Open MPI says 3 ranks here, and rank 1 of 4 on"):
        lead.gather()
    lead.close()
    for thread in (*twins, other):
        thread.join(20)


def test_a_second_rank_0_on_one_host_is_told(tmp_path):
    place = MeetingPoint(RankInfo(0, 3, 0, 3, "Open MPI"), os.urandom(8).hex(), tmp_path)
    lead = Lead(place)
    with pytest.raises(LaunchError, match="duplicate rank 0 of 3"):
        Lead(place)
    lead.close()


def test_who_does_not_know_the_secret_is_not_heard(tmp_path):
    place = MeetingPoint(RankInfo(0, 2, 0, 0, "PALS"), "key", tmp_path, join_s=20.0)
    lead = Lead(place)
    told = json.loads(place.file.read_text())
    assert stat.S_IMODE(place.file.stat().st_mode) == 0o600
    strange = (
        b"\xff[[[\n",
        b"x" * 5000,
        b"",
        b"[" * 4000 + b"\n",
        b'{"rank": 1e999, "size": 2, "host": "", "secret": ""}\n',
    )
    for said in (b'{"rank": 1, "size": 2, "host": "x", "secret": "guessed"}\n', *strange):
        with socket.create_connection(("127.0.0.1", told["port"]), timeout=5) as stranger:
            stranger.sendall(said)
    answers: dict[int, object] = {}
    thread = asking(of_rank(place, 1), answers)
    assert lead.gather() == [this_host()] * 2
    lead.send({"exit": 2})
    thread.join(20)
    assert answers == {1: {"exit": 2}}


def test_a_file_of_a_launch_that_is_gone_is_passed(tmp_path):
    place = MeetingPoint(RankInfo(0, 2, 0, 0, "PALS"), "key", tmp_path, join_s=20.0)
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        place.file.write_text(json.dumps({"names": ["127.0.0.1"], "port": gone.getsockname()[1], "secret": "old"}))
    answers: dict[int, object] = {}
    thread = asking(of_rank(place, 1), answers)
    lead = Lead(place)
    lead.gather()
    lead.send({"exit": 0})
    thread.join(20)
    assert answers == {1: {"exit": 0}}


def test_launches_are_told_apart():
    def key(family: str, local: int = 4, **env: str) -> str:
        return launch_key(RankInfo(0, 4, 0, local, family), env, lambda variable: f"process with {variable or 'any'}")

    slurm = key("SLURM", SLURM_JOB_ID="7", SLURM_STEP_ID="0")
    assert slurm == key("SLURM", SLURM_JOB_ID="7", SLURM_STEP_ID="0", PBS_JOBID="8")
    assert slurm != key("SLURM", SLURM_JOB_ID="7", SLURM_STEP_ID="1")
    assert key("MPICH") != key("MPICH", 2)  # by the process that started them, or by the job
    assert key("MPICH", 2, PBS_JOBID="1") != key("MPICH", 2, PBS_JOBID="2")
    first = key("torchrun", TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT="0", MASTER_PORT="29500")
    assert first != key("torchrun", TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT="1", MASTER_PORT="29500")


def test_the_process_that_started_the_ranks_is_found_above_shells_and_wrappers(tmp_path):
    def process(pid: int, parent: int, environ: str) -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "environ").write_text(environ)
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} " + " ".join(["0"] * 17) + f" {pid}00 0")

    process(9, 8, "PATH=x\0PMI_RANK=3\0")
    process(8, 7, "PMI_RANK=3\0PATH=x\0")
    process(7, 1, "PATH=x\0NOT_PMI_RANK=1\0")
    assert starting_process("PMI_RANK", 9, tmp_path) == "7 700"
    assert starting_process("", 9, tmp_path) == "9 900"
    assert starting_process("PMI_RANK", 5, tmp_path) == "5 "  # another user's


def test_the_folder_of_a_place_is_where_the_file_is(tmp_path):
    assert MeetingPoint(RankInfo(0, 2, 0, 0, "PALS"), "k", tmp_path).file == Path(tmp_path, ".megads-ranks-k")
