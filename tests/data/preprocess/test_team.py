"""Ranks that meet in a folder: whoever is missing or fails, nobody waits forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from megads.data.preprocess.progress import Done
from megads.data.preprocess.team import EndedByLeader, Team
from megads.errors import DataError


def together(*bodies: Callable[[], object]) -> list[object]:
    """Call every body in a thread; return what each returns or raises."""
    results: list[object] = [None] * len(bodies)

    def call(place: int) -> None:
        try:
            results[place] = bodies[place]()
        except (DataError, EndedByLeader) as error:
            results[place] = error

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    return results


def leader(team: Team) -> str:
    team.begin()
    team.go("digest")
    team.wait(Done(documents=1), lambda done: None)
    team.finish(Done())
    return "made"


def follower(team: Team, *, fails: bool = False) -> str:
    team.begin()
    digest = team.follow(lambda: None)
    if fails:
        team.fail("a.jsonl:3: is not JSON")
    team.finish(Done(documents=2))
    return digest


def test_all_are_well(tmp_path):
    folder = tmp_path / "ranks"
    found = together(
        lambda: leader(Team(0, 3, folder)), lambda: follower(Team(1, 3, folder)), lambda: follower(Team(2, 3, folder))
    )
    assert found == ["made", "digest", "digest"]
    assert not folder.exists()


def test_what_an_earlier_run_left_is_not_believed(tmp_path):
    """Two ranks of it were done, one failed; its leader let everybody begin."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    names = '{"names": {"1": "x", "2": "x"}, "digest": "old", "state": "working", "beat": 3}'
    (folder / "leader.json").write_text(names)
    for rank, state in ((1, "done"), (2, "failed")):
        content = f'{{"me": "x", "host": "h", "state": "{state}", "message": "old", "beat": 9, "done": {{}}}}'
        (folder / f"{rank}.json").write_text(content)

    def late() -> str:
        time.sleep(0.3)
        return follower(Team(2, 3, folder))

    found = together(lambda: leader(Team(0, 3, folder)), lambda: follower(Team(1, 3, folder)), late)
    assert found == ["made", "digest", "digest"]


def test_one_fails_and_the_leader_says_why(tmp_path):
    folder = tmp_path / "ranks"
    lead = Team(0, 3, folder)

    def told() -> str:
        try:
            return leader(lead)
        except DataError as error:
            lead.fail(str(error))
            raise

    def busy() -> None:
        team = Team(1, 3, folder)
        team.begin()
        team.follow(lambda: None)
        while True:
            team.tick(Done())
            time.sleep(0.05)

    found = together(told, busy, lambda: follower(Team(2, 3, folder), fails=True))
    assert str(found[0]) == "a.jsonl:3: is not JSON"
    assert isinstance(found[0], DataError)
    assert [type(each) for each in found[1:]] == [EndedByLeader, EndedByLeader]
    assert not folder.exists()


def test_leader_gives_up_a_rank_without_a_sign_of_life(tmp_path):
    team = Team(0, 3, tmp_path / "ranks", patience_s=0.5)
    found = together(lambda: leader(team), lambda: follower(Team(1, 3, tmp_path / "ranks")))
    assert str(found[0]).startswith("no sign of rank 2 for 0 s; rerun the same command")
    assert found[1] == "digest"


def test_rank_gives_up_a_leader_without_a_sign_of_life(tmp_path):
    folder = tmp_path / "ranks"
    (error,) = together(lambda: follower(Team(1, 2, folder, patience_s=0.3)))
    assert isinstance(error, DataError)
    assert str(error).startswith(f"rank 1: no sign of rank 0 in {folder} for ")

    begun = threading.Event()

    def dies() -> None:
        team = Team(0, 2, folder)
        team.begin()
        while not begun.wait(0.02):
            team._read_others()
            team.go("digest")

    def works() -> None:
        team = Team(1, 2, folder, patience_s=1.5)
        team.begin()
        team.follow(lambda: None)
        begun.set()
        while True:
            team.tick(Done())
            time.sleep(0.05)

    found = together(dies, works)
    assert str(found[1]) == "rank 1: no sign of rank 0 for 2 s"


def test_a_rank_of_a_leader_that_was_killed_makes_room(tmp_path):
    """A new run begins while one of the old one's ranks still works."""
    folder = tmp_path / "ranks"
    old, new = Team(1, 2, folder), Team(1, 2, folder)
    lead = Team(0, 2, folder)
    lead.begin()
    old.begin()
    lead._read_others()
    lead.go("digest")
    assert old.follow(lambda: None) == "digest"
    lead = Team(0, 2, folder)
    lead.begin()
    new.begin()
    lead._read_others()
    lead.go("digest")
    assert new.follow(lambda: None) == "digest"
    with pytest.raises(EndedByLeader):
        old.tick(Done())
