"""Where ranks wait, who is blamed, and how positions are left and collected."""

from __future__ import annotations

import pytest

from megads.train.fault.hang_report import Board, Hang, Position, spans

WAITING = (
    '  File "/x/megads/train/loop.py", line 88, in step\n    result = engine.train_step()\n',
    '  File "/v/torch/distributed/distributed_c10d.py", line 2810, in all_reduce\n    work.wait()\n',
)


SYNCING = ('  File "/x/megads/train/loop.py", line 99, in step\n    loss = float(result.loss)\n',)


LOADING = (
    '  File "/x/megads/data/loading/batches.py", line 40, in __next__\n    row = self.dataset[i]\n',
    '  File "/v/numpy/memmap.py", line 3, in __getitem__\n    res = super()\n',
)


def at(rank, host="a", phase="step", iteration=7, waited=600.0, stack=WAITING):
    return Position(rank, host, phase, iteration, waited, stack)


def hang(*positions, size=0, hosts=None):
    return Hang({each.rank: each for each in positions}, hosts or {}, size or len(positions))


def test_a_silent_rank_is_named_with_the_host_it_had_at_the_start():
    found = hang(at(0), at(1), at(3, "b"), size=4, hosts={2: "b"})
    assert found.headline() == "no progress for 600 s in step after iteration 7: rank 2 host b did not answer"
    assert found.blamed() == (2, "b")
    assert "silent (stopped, gone, or in code that holds Python's lock): rank 2\n" in found.report()
    place = "megads/train/loop.py:88 step > torch/distributed/distributed_c10d.py:2810 all_reduce"
    assert f"step after iteration 7, in {place}: ranks 0-1, 3\n" in found.report()
    assert '[rank 0 host a]   File "/x/megads/train/loop.py", line 88, in step\n' in found.report()


@pytest.mark.parametrize(
    "late",
    [
        at(1, "b", iteration=6),
        at(1, "b", "save"),
        at(1, "b", "validation"),
        at(1, "b", "set-up", 0),
        at(1, "b", stack=LOADING),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named(late):
    found = hang(at(0), late, at(2))
    assert found.headline() == "no progress for 600 s in step after iteration 7: rank 1 host b did not arrive"
    assert found.blamed() == (1, "b")
    lines = found.report().splitlines()
    assert ": rank 1" in lines[1]
    assert ": ranks 0, 2" in lines[2]


def test_nobody_is_blamed_when_all_are_alike():
    found = hang(at(0), at(1, "b"))
    assert found.blamed() == (-1, "")
    assert found.headline().endswith("all ranks are in the same place")


def test_ranks_that_wait_for_their_accelerator_are_told_from_the_one_that_is_late():
    found = hang(at(0, stack=SYNCING), at(1, "b", stack=LOADING), at(2, stack=SYNCING))
    assert found.blamed() == (1, "b")
    unclear = hang(at(0, stack=SYNCING), at(1, "b", stack=LOADING))
    assert unclear.blamed() == (-1, "")
    assert unclear.headline().endswith("they are in different places, and none is clearly late")


def test_a_report_of_ten_thousand_ranks_is_short():
    found = Hang({rank: at(rank) for rank in range(9_990)}, {}, 10_000)
    text = found.report()
    assert len(text.splitlines()) < 12
    assert len(text) < 2000
    assert "rank 9990 host ?, " in text
    assert "2 more ranks did not answer" in text


def test_spans_of_ranks():
    assert spans([3]) == "rank 3"
    assert spans([0, 1, 2, 5, 7, 8]) == "ranks 0-2, 5, 7-8"


def test_a_position_travels_as_text():
    assert Position.read(at(3).text()) == at(3)


class Kept(dict[str, bytes]):
    """A store that counts the questions."""

    questions = 0

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def add(self, key: str, amount: int) -> int:
        self.questions += 1
        self[key] = str(int(self.get(key, b"0")) + amount).encode()
        return int(self[key])

    def check(self, keys: list[str]) -> bool:
        self.questions += 1
        return all(key in self for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.questions += 1
        return [self[key] for key in keys]


def test_positions_of_many_ranks_are_collected_in_few_questions(tmp_path):
    size, silent = 3000, {0, 7, *range(1000, 2900)}
    store = Kept({f"host/{rank}": f"h{rank}".encode() for rank in range(size) if rank != 7})
    board = Board(lambda: store, tmp_path)
    for rank in reversed(range(size)):  # in any order
        if rank not in silent:
            board.post(rank, at(rank).text())
    store.add("hang/left", 1)  # a rank that was killed before it could write
    store.questions = 0
    found, hosts = board.collect(size)
    assert found == {rank: at(rank) for rank in range(size) if rank not in silent}
    assert hosts == {rank: f"h{rank}" for rank in silent - {7}}
    assert store.questions < 60
