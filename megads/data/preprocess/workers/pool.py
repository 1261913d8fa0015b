"""The worker processes, and the messages between them and the process that leads them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from megads.cluster.parent import end_with
from megads.errors import DataError, MegadsError

FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Ready:
    """A worker's first word: it has its tokenizer."""

    vocab_size: int
    eod: int | None
    fingerprint: str
    encoder: str  # name of what encodes, as for --encoder
    reason: str  # why this one


@dataclass(frozen=True)
class Start:
    """The leader's first word: where to write, and as what."""

    encoder: str
    bins: tuple[str, ...]  # files, one for each key
    dtype: str


@dataclass(frozen=True)
class Block:
    """A stretch of the input: the lines that begin at bytes ``start`` up to ``stop`` of ``path``."""

    number: int
    segment: int  # index among those of the part
    path: str
    start: int
    stop: int
    used: int  # bytes of the file on disk for the segment up to here
    data: bytes | None = None  # the lines themselves, where the file cannot be read from its middle


@dataclass(frozen=True)
class Output:
    """What a block adds to one pair of token files, besides the tokens."""

    num_bytes: int  # of its tokens
    lengths: npt.NDArray[np.int32]  # [n] tokens of each sequence, none 0
    sequences: npt.NDArray[np.int32]  # [d] sequences of each document


@dataclass(frozen=True)
class Answer:
    """A block is done; what it adds to the files of bytes waits in the worker."""

    number: int
    documents: int
    text_bytes: int
    lines: int
    bad: list[tuple[int, str]]  # (index of the line within the block, what is wrong)
    num_bytes: tuple[int, ...]  # for each file
    sequences: tuple[int, ...] = ()  # for each file; of files of bytes alone: none
    counts: Mapping[str, int] = field(default_factory=dict)  # whatever else is counted, added up
    note: str = ""  # to be reported once


@dataclass(frozen=True)
class Encoded(Answer):
    """A block is encoded; its tokens wait in the worker."""

    outputs: tuple[Output, ...] = ()  # for each key


@dataclass(frozen=True)
class Write:
    """Where the bytes of a block belong, for each file; sent back when they are there."""

    number: int
    offsets: tuple[int, ...]
    documents: int = 0  # of the part, before the block


@dataclass(frozen=True)
class Failed:
    """A worker cannot continue."""

    error: Any  # the exception
    number: int = -1  # of the block
    line: int = -1  # of the block


class Pool:
    """Worker processes, forked: this process must not have used a library that starts threads."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[multiprocessing.context.ForkProcess] = []

    def start(self, serve: Callable[[Connection], None], close: Sequence[int] = ()) -> None:
        """Start a worker that calls ``serve`` with its end of a pipe.

        Args:
            serve: returns when the pipe is closed.
            close: descriptors that are none of the worker's business.
        """
        ours, theirs = multiprocessing.Pipe()
        process = FORK.Process(target=_work, args=(os.getpid(), serve, theirs, (*self._pipes, ours), close))
        process.start()
        theirs.close()
        self._pipes.append(ours)
        self._processes.append(process)

    def __len__(self) -> int:
        return len(self._processes)

    def send(self, worker: int, message: Any) -> None:
        """Send ``message``; that a worker is gone comes up in :meth:`receive`."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._pipes[worker].send(message)

    def receive(self, timeout: float, *bells: int) -> list[tuple[int, Any]]:
        """Return (worker, message) pairs, as soon as there is one, a bell rings, or the time is over.

        DataError where a worker died.
        """
        found = []
        for each in wait([*self._pipes, *bells], timeout):
            if isinstance(each, Connection):
                worker = self._pipes.index(each)
                try:
                    found.append((worker, each.recv()))
                except (EOFError, ConnectionResetError):
                    raise DataError(_how_it_ended(self._processes[worker])) from None
        return found

    def close(self) -> None:
        """End all workers at once."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []


def _work(
    leader: int,
    serve: Callable[[Connection], None],
    pipe: Connection,
    others: Sequence[Connection],
    close: Sequence[int],
) -> None:
    for each in others:
        each.close()
    for handle in close:
        os.close(handle)
    # The leader hears the signals of the terminal, and ends the others.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_with(leader)
    serve(pipe)


@contextmanager
def telling(pipe: Connection) -> Iterator[None]:
    """In a worker: tell the leader what ends the block, unless it is that the leader is gone."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except (MegadsError, OSError, MemoryError) as error:
        pipe.send(Failed(error))
    except BaseException:  # a panic of a library in Rust is no Exception
        pipe.send(Failed(RuntimeError("in a worker:\n" + traceback.format_exc())))


def answer_blocks(
    pipe: Connection, make: Callable[[Block], Answer | Failed], write: Callable[[Write], None]
) -> NoReturn:
    """In a worker: ``make`` what the leader asks for, and ``write`` it where the leader says, until that is gone.

    Raises:
        EOFError, OSError: it is gone.
    """
    while True:
        message: Write | Block = pipe.recv()
        if isinstance(message, Write):
            write(message)
            pipe.send(message)
            continue
        try:
            answer = make(message)
        except (MegadsError, MemoryError) as error:
            answer = Failed(error, message.number)
        pipe.send(answer)


def _how_it_ended(process: multiprocessing.context.ForkProcess) -> str:
    process.join()
    if (code := process.exitcode or 0) < 0:
        name = signal.Signals(-code).name
        cure = "; probably out of memory: use fewer --workers" if name == "SIGKILL" else ""
        return f"a worker was ended by {name}{cure}; rerun the same command to resume"
    return "a worker ended unexpectedly; rerun the same command to resume"
