"""Where ranks are that wait for each other without progress: how they leave word, and what is made of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from megads.comm.rendezvous import read_numbers
from megads.monitor.check_stages import spans as number_spans
from megads.text.plural import noun_for

Answer = TypeVar("Answer")

PHASES = ("set-up", "validation", "save", "step")
"""In the order in which they follow each other after the same iteration."""

IN_FILES = 64
"""Ranks below it leave word in files where the store does not answer; thousands of files would help nobody."""

BROKEN = (RuntimeError, OSError, KeyError)  # what a store raises that does not answer, or was never there
ANSWER_S = 5.0  # for the store
ASKED_PER_S = 1000  # ranks
PLACES = 8  # whose stacks are shown
NAMED = 8  # ranks that a line names one by one


@dataclass(frozen=True)
class Position:
    """Where the main thread of one rank is."""

    rank: int
    host: str
    phase: str  # "set-up" | "step" | "validation" | "save" ...
    iteration: int  # the last one that was done
    waited_s: float  # in the phase
    stack: tuple[str, ...] = ()  # Python frames as traceback.format_stack gives them, outermost first

    def text(self) -> str:
        """Return the position as it is sent."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> Position:
        """Return what :meth:`text` made."""
        given = json.loads(text)
        return Position(**{**given, "stack": tuple(given["stack"])})

    @property
    def place(self) -> str:
        """The innermost frame of megads and the innermost of all, as ``train/loop.py:88 step > ...``."""
        frames = [_short(frame) for frame in self.stack]
        ours = [frame for frame in frames if frame.startswith("megads/")]
        return " > ".join(dict.fromkeys([*ours[-1:], *frames[-1:]])) or "no Python frame"

    @property
    def order(self) -> tuple[int, int]:
        """How far it is: what comes later is larger."""
        return self.iteration, PHASES.index(self.phase) if self.phase in PHASES else len(PHASES)

    @property
    def waits(self) -> bool:
        """Whether it is known to wait for other ranks."""
        return any("distributed" in frame.split(",")[0] or "/comm/" in frame for frame in self.stack[-4:])


def _short(frame: str) -> str:
    """Return ``megads/train/loop.py:88 step`` for a line of a stack."""
    parts = frame.strip().splitlines()[0].split(", ")
    path = parts[0].removeprefix('File "').removesuffix('"')
    for part in ("megads/", "torch/", "deepspeed/"):
        if f"/{part}" in path:
            path = part + path.rpartition(f"/{part}")[2]
            break
    else:
        path = os.path.basename(path)
    return f"{path}:{parts[1].removeprefix('line ')} {parts[2].removeprefix('in ')}" if len(parts) > 2 else path


def within(seconds: float, call: Callable[[], Answer]) -> Answer:
    """Return ``call()``, given up after ``seconds``: torch's stores wait forever for a host that is stopped.

    Raises:
        RuntimeError: no answer in time.
    """
    answers: list[Answer] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except Exception as error:
            problems.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if problems:
        raise problems[0]
    if not answers:
        raise RuntimeError(f"no answer in {seconds:g} s")
    return answers[0]


@dataclass
class Board:
    """The place where ranks leave word: the store of the run, or files when it does not answer."""

    # A connection of its own: the main thread may be waiting in torch's, and holds its lock.
    open_store: Callable[[], dist.Store]
    folder: Path  # for the files; shared by all hosts
    attempt: int = 0  # number of this start of the run
    _store: list[dist.Store] = field(default_factory=list)

    def post(self, rank: int, text: str) -> None:
        """Leave the position of a rank."""

        def set_in_store() -> dist.Store:
            store = self.open_store()
            # By the order in which they come: who collects them need not ask for ranks that left nothing.
            store.set(f"hang/{store.add('hang/left', 1)}", text)
            store.set("hang/called", "1")
            return store

        try:
            self._store = [within(ANSWER_S, set_in_store)]
        except BROKEN:
            self._store = []
            if rank < IN_FILES:
                with suppress(OSError):  # a full disk
                    self.folder.mkdir(parents=True, exist_ok=True)
                    self._file(str(rank)).write_text(text, encoding="utf8")

    def called(self) -> bool:
        """Return whether a rank has left its position, so that the others are to leave theirs."""
        try:
            return within(ANSWER_S, lambda: self.open_store().check(["hang/called"]))
        except BROKEN:
            return False

    def claim(self) -> bool:
        """Return whether this rank is the first to ask, and so the one that reports."""
        try:
            if self._store:
                return within(ANSWER_S, lambda: self._store[0].add("hang/claim", 1)) == 1
            os.close(os.open(self._file("claim"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except BROKEN:
            return False
        return True

    def collect(self, world_size: int) -> tuple[dict[int, Position], dict[int, str]]:
        """Return the positions that ranks have left, and the hosts of the others, where known.

        It asks the store for many of them at once: one question for each of 10,000 ranks would take too long.
        """
        found: list[Position] = []
        hosts: dict[int, str] = {}

        def ask_store() -> None:
            store = self._store[0]
            for _, text in read_numbers(store, "hang", range(1, store.add("hang/left", 0) + 1)):
                found.append(Position.read(text))
            silent = sorted({*range(world_size)} - {each.rank for each in found})
            hosts.update(read_numbers(store, "host", silent))  # left there when the ranks met

        if self._store:
            with suppress(*BROKEN):  # what came until then is reported
                within(ANSWER_S + world_size / ASKED_PER_S, ask_store)
        else:
            texts = (self._read(rank) for rank in range(min(IN_FILES, world_size)))
            found = [Position.read(text) for text in texts if text]
        return {each.rank: each for each in [*found]}, dict(hosts)

    def clear(self) -> None:
        """Remove what ranks of an earlier start left in files."""
        for path in self.folder.glob(".hang-*"):
            path.unlink(missing_ok=True)

    def _read(self, rank: int) -> str:
        try:
            return self._file(str(rank)).read_text(encoding="utf8")
        except OSError:
            return ""

    def _file(self, name: str) -> Path:
        return self.folder / f".hang-{self.attempt}-{name}"


@dataclass(frozen=True)
class Hang:
    """What is known of a hang."""

    found: Mapping[int, Position]  # of the ranks that answered, at least one
    hosts: Mapping[int, str]  # of the ranks that did not, where known
    world_size: int

    @property
    def silent(self) -> list[int]:
        """Ranks that did not answer."""
        return [rank for rank in range(self.world_size) if rank not in self.found]

    @property
    def late(self) -> list[int]:
        """Ranks for which the others wait: those furthest behind, else those that do not wait; or nobody."""
        least = min(each.order for each in self.found.values())
        behind = [rank for rank, each in sorted(self.found.items()) if each.order == least]
        if len(behind) < len(self.found):
            return behind
        busy = [rank for rank, each in sorted(self.found.items()) if not each.waits]
        if len(busy) < len(self.found):
            return busy
        # A rank that waits for its accelerator, and that for other ranks, looks busy: what most do is waiting.
        *few, most = sorted(self.places().values(), key=len)
        return sorted(rank for ranks in few for rank in ranks) if 2 * len(most) > len(self.found) else []

    def places(self) -> dict[tuple[str, int, str], list[int]]:
        """Return the ranks that answered by phase, iteration and place."""
        found: dict[tuple[str, int, str], list[int]] = {}
        for rank, each in sorted(self.found.items()):
            found.setdefault((each.phase, each.iteration, each.place), []).append(rank)
        return found

    def blamed(self) -> tuple[int, str]:
        """Return the rank and the host to blame, -1 and nothing when that is not clear."""
        for rank in (*self.silent, *self.late):
            return rank, self.host(rank)
        return -1, ""

    def host(self, rank: int) -> str:
        """Return the host of ``rank``, empty when it is not known."""
        return self.found[rank].host if rank in self.found else self.hosts.get(rank, "")

    def headline(self) -> str:
        """Return one line: which ranks did not arrive, where the others wait, and for how long."""
        waiting = max(self.found.values(), key=lambda each: (each.waits, each.waited_s))
        where = f"{waiting.phase} after iteration {waiting.iteration}"
        if self.silent:
            who = f"{self.names(self.silent)} did not answer"
        elif self.late:
            who = f"{self.names(self.late)} did not arrive"
        elif len(self.places()) > 1:
            who = "they are in different places, and none is clearly late"
        else:
            who = "all ranks are in the same place"
        return f"no progress for {waiting.waited_s:.0f} s in {where}: {who}"

    def names(self, ranks: Sequence[int]) -> str:
        """Return ``rank 3 host b``, the first of many ranks with their hosts."""
        named = [f"rank {rank} host {self.host(rank) or '?'}" for rank in ranks[:NAMED]]
        more = [f"{len(ranks) - NAMED} more ranks"] if len(ranks) > NAMED else []
        return ", ".join([*named, *more])

    def report(self) -> str:
        """Return the lines that say who is where, with a stack for each place."""
        lines = [f"megads: {self.headline()}"]
        if self.silent:
            lines.append(f"  silent (stopped, gone, or in code that holds Python's lock): {spans(self.silent)}")
        places = self.places()
        # The few that are somewhere else say more than the many that wait.
        for (phase, iteration, place), ranks in sorted(places.items(), key=lambda item: len(item[1])):
            lines.append(f"  {phase} after iteration {iteration}, in {place}: {spans(ranks)}")
        for _, ranks in sorted(places.items(), key=lambda item: len(item[1]))[:PLACES]:
            first = self.found[ranks[0]]
            text = "".join(first.stack).splitlines()
            lines += [f"[rank {first.rank} host {first.host}] {line}" for line in text]
        return "\n".join(lines) + "\n"


def spans(ranks: Sequence[int]) -> str:
    """Return ascending ranks as ``rank 3`` or ``ranks 0-4, 7``, of many parts the first."""
    parts = number_spans(ranks).split(", ")
    text = ", ".join(parts[:50]) + (", ..." if len(parts) > 50 else "")
    return f"{noun_for(len(ranks), 'rank')} {text}"
