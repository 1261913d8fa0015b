"""Results in order, from processes that take different times."""

from __future__ import annotations

import os
import time

import pytest

from megads.data.corpus.ordered import ordered_map
from megads.errors import DataError


def slow_at_first(number: int) -> tuple[int, int]:
    time.sleep(0.05 if number == 0 else 0)
    return number, os.getpid()


def fail_at_seven(number: int) -> int:
    if number == 7:
        raise DataError("seven")
    return number


def crash(number: int) -> int:
    os._exit(1)


def bug(number: int) -> int:
    return number // 0


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_are_in_order(workers):
    found = list(ordered_map(slow_at_first, range(60), workers))
    assert [number for number, _ in found] == list(range(60))
    assert (os.getpid() in {pid for _, pid in found}) == (workers == 1)
    assert list(ordered_map(slow_at_first, [], workers)) == []


def test_items_are_taken_only_as_far_ahead_as_results_can_wait():
    taken = 0

    def items():
        nonlocal taken
        while taken < 1000:
            taken += 1
            yield taken

    results = ordered_map(abs, items(), 2)
    next(results)
    assert taken <= 20
    results.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_large_items_and_results_do_not_block(workers):
    items = [bytes(1 << 20)] * 6
    assert list(ordered_map(bytes.upper, items, workers)) == items


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_work_is_raised(workers):
    with pytest.raises(DataError, match="seven"):
        list(ordered_map(fail_at_seven, range(20), workers))


def test_a_worker_that_ends_is_reported():
    with pytest.raises(DataError, match="a worker ended unexpectedly; rerun the same command to resume"):
        list(ordered_map(crash, range(3), 2))


def test_a_bug_in_a_worker_keeps_its_traceback():
    with pytest.raises(RuntimeError, match=r"(?s)in a worker.*ZeroDivisionError"):
        list(ordered_map(bug, range(3), 2))


@pytest.mark.parametrize("workers", [1, 2])
def test_check_may_stop(workers):
    def check() -> None:
        raise DataError("stopped")

    with pytest.raises(DataError, match="stopped"):
        list(ordered_map(abs, range(100), workers, check))
