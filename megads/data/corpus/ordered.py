"""Call a function in several processes, with its results in the order of what it is called with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from megads.data.preprocess.workers.pool import Failed, Pool, telling

W = TypeVar("W")
R = TypeVar("R")

_POLL_S = 0.2
_AHEAD = 8  # results per worker that wait for one before them


def _nothing() -> None:
    return


def ordered_map(
    work: Callable[[W], R], items: Iterable[W], workers: int, check: Callable[[], None] = _nothing
) -> Iterator[R]:
    """Yield ``work(item)`` for each item, in order. Few items and results are held at a time.

    Args:
        work: what is called, in forked processes; with one worker in this one.
        items: can be pickled, as the results.
        workers: number of processes.
        check: called now and then; may raise to stop.

    Raises:
        MegadsError: of ``work``, or a process died.
    """
    if workers == 1:
        for item in items:
            check()
            yield work(item)
        return
    pool = Pool()
    try:
        for _ in range(workers):
            pool.start(partial(_serve, work=work))
        yield from _ordered(pool, iter(items), check)
    finally:
        pool.close()


def _ordered(pool: Pool, items: Iterator[W], check: Callable[[], None]) -> Iterator[Any]:
    idle = list(range(len(pool)))
    waiting: dict[int, Any] = {}
    sent = given = 0
    is_over = False
    while True:
        # One item per worker: it reads the next one only after its result is read.
        while idle and not is_over and sent - given < _AHEAD * len(pool):
            try:
                item = next(items)
            except StopIteration:
                is_over = True
                break
            pool.send(idle.pop(), (sent, item))
            sent += 1
        while given in waiting:
            yield waiting.pop(given)
            given += 1
        if is_over and given == sent:
            return
        check()
        if len(idle) < len(pool):
            for worker, message in pool.receive(_POLL_S):
                if isinstance(message, Failed):
                    raise message.error
                number, result = message
                waiting[number] = result
                idle.append(worker)


def _serve(pipe: Connection, work: Callable[[Any], Any]) -> None:
    with telling(pipe):
        while True:
            number, item = pipe.recv()
            pipe.send((number, work(item)))
