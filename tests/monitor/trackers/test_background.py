"""Work in the background is done in order, waited for when that is asked, and its failures are not lost."""

from __future__ import annotations

import threading

import pytest

from megads.monitor.trackers import background as module
from megads.monitor.trackers.background import BackgroundWorker


def test_pieces_are_done_in_order_and_on_one_other_thread():
    voice, done = BackgroundWorker(), []
    for number in range(100):
        voice.soon(lambda number=number: done.append((number, threading.current_thread())))
    assert voice.settle()
    assert [number for number, _ in done] == list(range(100))
    (thread,) = {thread for _, thread in done}
    assert thread is not threading.current_thread()


def test_nothing_given_is_nothing_to_wait_for():
    assert BackgroundWorker().settle()


def test_who_waits_gives_up_after_a_while():
    voice, go_on = BackgroundWorker(), threading.Event()
    voice.soon(go_on.wait)
    assert not voice.settle(0.01)
    go_on.set()
    assert voice.settle()


@pytest.mark.parametrize("call", [BackgroundWorker.settle, lambda voice: voice.soon(list)])
def test_what_a_piece_raises_comes_back_once(call):
    voice = BackgroundWorker()
    failed = threading.Event()

    def fail():
        failed.set()
        raise ValueError("a bug")

    after = threading.Event()
    voice.soon(fail)
    voice.soon(after.set)
    assert failed.wait(10)
    assert after.wait(10)
    with pytest.raises(ValueError, match="a bug"):
        call(voice)
    assert voice.settle()


def test_the_training_waits_for_a_voice_that_is_far_behind(monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    voice, go_on, done = BackgroundWorker(), threading.Event(), []
    voice.soon(go_on.wait)
    threading.Timer(0.05, go_on.set).start()
    for number in range(10):
        voice.soon(lambda number=number: done.append(number))
    assert go_on.is_set()
    assert voice.settle()
    assert done == list(range(10))
