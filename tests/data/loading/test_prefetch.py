"""Reading ahead gives what reading gives: the same batches, errors where they belong, and no thread left."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import traceback

import numpy as np
import pytest
import torch

from megads.data.loading.batches import AHEAD_BYTES, Batches, Prefetch, read_ahead
from megads.errors import DataError

SEQ = 8


class Counting:
    """Sample ``i`` is ``i`` in every place; reading takes ``delay(i)`` seconds."""

    def __init__(self, size, delay=lambda i: 0.0, broken=()):
        self.size, self.delay, self.broken = size, delay, broken
        self.read: list[int] = []

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        time.sleep(self.delay(i))
        self.read.append(i)
        if i in self.broken:
            raise DataError(f"sample {i} is broken")
        return np.full(SEQ + 1, i)


def batches(dataset, consumed=0, micro_batch=2):
    return Batches(dataset, micro_batch=micro_batch, data_rank=0, data_size=1, consumed=consumed)


def first_ids(prefetch, count):
    return [int(next(prefetch)[0, 0]) for _ in range(count)]


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def readers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("megads-data")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    wait_until(lambda: not readers())


@pytest.mark.parametrize("ahead", [1, 3, 64])
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
def test_batches_come_in_order_however_long_each_takes(workers, ahead):
    rng = random.Random(workers)
    delays = [rng.random() * 0.004 for _ in range(80)]
    with Prefetch(batches(Counting(80, delays.__getitem__)), workers, ahead) as prefetch:
        got = [next(prefetch) for _ in range(40)]
    plain = batches(Counting(80))
    assert all(torch.equal(batch, plain.read(2 * i)) for i, batch in enumerate(got))


def test_no_more_is_read_than_allowed():
    dataset = Counting(1000)
    with Prefetch(batches(dataset), 2, 5) as prefetch:
        assert first_ids(prefetch, 3) == [0, 2, 4]
        wait_until(lambda: len(dataset.read) >= 2 * (3 + 5))
        time.sleep(0.1)  # for more than is allowed
        assert sorted(dataset.read) == list(range(2 * (3 + 5)))


def test_an_error_is_raised_at_its_step_with_the_thread_that_met_it():
    dataset = Counting(40, broken=(6,))
    with Prefetch(batches(dataset), 2, 10) as prefetch:
        wait_until(lambda: 6 in dataset.read)
        assert first_ids(prefetch, 3) == [0, 2, 4]
        for _ in range(2):  # and again when somebody asks again
            with pytest.raises(DataError, match="sample 6 is broken") as caught:
                next(prefetch)
        told = "".join(traceback.format_exception(caught.value))
    assert "in __getitem__" in told
    assert "in read" in told


@pytest.mark.parametrize("workers", [0, 3])
def test_the_end_of_the_data_is_an_error_only_when_it_is_reached(workers):
    with Prefetch(batches(Counting(8)), workers, 64) as prefetch:
        assert first_ids(prefetch, 4) == [0, 2, 4, 6]
        with pytest.raises(DataError, match="8 samples are consumed, 2 more are needed, 8 were prepared"):
            next(prefetch)


@pytest.mark.parametrize("workers", [0, 2])
def test_seek_drops_what_was_read_ahead(workers):
    with Prefetch(batches(Counting(400)), workers, 6) as prefetch:
        assert first_ids(prefetch, 2) == [0, 2]
        prefetch.seek(301)
        assert first_ids(prefetch, 2) == [301, 303]
        prefetch.seek(305)
        assert first_ids(prefetch, 1) == [305]


def test_asking_after_the_end_begins_anew():
    prefetch = Prefetch(batches(Counting(100)), 2, 4)
    assert first_ids(prefetch, 2) == [0, 2]
    prefetch.close()
    assert not readers()
    assert first_ids(prefetch, 2) == [4, 6]
    prefetch.close()


def test_a_step_that_fails_does_not_wait_for_a_file_system_that_hangs():
    released = threading.Event()
    dataset = Counting(100, delay=lambda i: float(released.wait(100)) * 0 if i >= 4 else 0.0)
    started = time.monotonic()
    with contextlib.suppress(ZeroDivisionError), Prefetch(batches(dataset), 2, 8) as prefetch:
        assert first_ids(prefetch, 2) == [0, 2]
        raise ZeroDivisionError
    assert time.monotonic() - started < 50
    released.set()


def test_reading_overlaps_with_the_step_and_with_itself():
    """The next batches are read during a step, and each sample waits until four are read at once."""
    together = threading.Barrier(4)
    dataset = Counting(400, delay=lambda i: 0.0 * together.wait(60))
    with Prefetch(batches(dataset, micro_batch=1), 4, 16) as prefetch:
        for step in range(5):
            assert first_ids(prefetch, 4) == list(range(4 * step, 4 * step + 4))
            wait_until(lambda step=step: len(dataset.read) >= 4 * step + 4 + 16)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_reads_on_by_itself():
    with Prefetch(batches(Counting(100)), 2, 4) as prefetch:
        assert first_ids(prefetch, 2) == [0, 2]
        inner, outer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                found = first_ids(prefetch, 3)
                prefetch.close()
                os.write(outer, f"{found}".encode())
            finally:
                os._exit(0)
        os.close(outer)
        with os.fdopen(inner) as pipe:
            assert pipe.read() == "[4, 6, 8]"
        os.waitpid(child, 0)
        assert first_ids(prefetch, 2) == [4, 6]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_prepared_is_prepared_by_the_thread_that_reads(workers):
    by: list[str] = []

    def prepare(batch):
        by.append(threading.current_thread().name)
        return -batch

    with (
        Prefetch(batches(Counting(80)), workers, 4, prepare) as prefetch,
        Prefetch(batches(Counting(80)), 0, 1) as plain,
    ):
        for _ in range(3):
            assert torch.equal(next(prefetch), -next(plain))
    main = threading.current_thread().name
    assert all((name == main) == (workers == 0) for name in by)


def test_two_steps_are_read_ahead_unless_they_are_too_large():
    small = batches(Counting(0))
    assert read_ahead(small, 2, 5, SEQ + 1).ahead == 10
    assert read_ahead(small, 16, 5, SEQ + 1).ahead == 16
    long = AHEAD_BYTES // (2 * 8 * 3)
    assert read_ahead(small, 2, 5, long).ahead == 3
    assert read_ahead(small, 1, 5, 10 * long).ahead == 1
