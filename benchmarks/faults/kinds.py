"""The faults: what is done to a run, the causes that are right, and whether the run can recover."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.monitor.causes.recorded import RECORDED
from tests.shim import Rule

ITERATIONS, SAVE_INTERVAL = 6, 2


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: the row of the table.
        causes: right ones; "": the run does not end of it.
        recoverable: whether a run can be brought to its end without a person.
        hosts: 0: real ranks on this host; else hosts that are simulated by scripts.
        at: the iteration before which it happens, in rank ``rank``.
        action: what the rank does, and ``value`` of it.
        every: whether it happens in every attempt.
        most_lost: steps since the last save; all, where no save is possible.
        rules: of the shim, in all ranks of the run together.
        broken: simulated hosts that fail whatever runs there; ``down``: that answer nobody.
        blames: simulated: the host that each failing attempt names.
    """

    kind: str
    causes: tuple[str, ...]
    recoverable: bool = True
    ranks: int = 1
    at: int = 3
    rank: int = 0
    action: str = ""
    value: str = ""
    every: bool = False
    most_lost: int = 2 * SAVE_INTERVAL
    rules: tuple[Rule, ...] = ()
    hosts: int = 0
    broken: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    blames: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)


def _at(rng: random.Random) -> int:
    return rng.randint(1, ITERATIONS - 1)


def _signal(name: str) -> Callable[[random.Random], Fault]:
    def make(rng: random.Random) -> Fault:
        ranks = rng.choice((1, 1, 1, 1, 2))
        return Fault(
            f"a rank gets {name}", ("unknown",), ranks=ranks, rank=rng.randrange(ranks), at=_at(rng), action=name
        )

    return make


def _exit(rng: random.Random) -> Fault:
    code = str(rng.choice((1, 3, 17, 255)))
    return Fault("a rank ends with a code and no words", ("unknown",), at=_at(rng), action="exit", value=code)


def _words(cause: str, *, recoverable: bool = True) -> Callable[[random.Random], Fault]:
    said = [row.said for row in RECORDED if row.cause == cause and row.said and not row.host]

    def make(rng: random.Random) -> Fault:
        name = f"a rank fails with the words of a {cause} failure that was published"
        return Fault(name, (cause,), recoverable, at=_at(rng), action="raise", value=rng.choice(said))

    return make


def _error(rng: random.Random) -> Fault:
    return Fault("an exception in a step, once", ("unknown",), at=_at(rng), action="raise", value="planted")


def _bug(rng: random.Random) -> Fault:
    return Fault(
        "an exception in the same step of every attempt", ("regression",), False, at=_at(rng), action="raise",
        value="planted", every=True,
    )  # fmt: skip


def _import(rng: random.Random) -> Fault:
    return Fault("a package is missing", ("user",), False, at=_at(rng), action="import")


def _memory(rng: random.Random) -> Fault:
    return Fault("memory is short, once", ("memory",), at=_at(rng), action="memory")


def _disk(name: str, call: str, pattern: str, error: str) -> Callable[[random.Random], Fault]:
    def make(rng: random.Random) -> Fault:
        rule = Rule(call, pattern, error, first=rng.randint(1, 3), count=1)
        return Fault(f"{error} {name}, once", ("filesystem", ""), rules=(rule,))

    return make


def _full(rng: random.Random) -> Fault:
    rule = Rule("write", "*/checkpoints/*", rng.choice(("ENOSPC", "EDQUOT")))
    name = "a disk that is full and stays full"
    return Fault(name, ("filesystem", "regression"), False, most_lost=ITERATIONS, rules=(rule,))


def _short(rng: random.Random) -> Fault:
    return Fault("short writes of a checkpoint", ("",), rules=(Rule("write", "*/checkpoints/*", "short", count=5),))


def _slow(rng: random.Random) -> Fault:
    return Fault("a slow disk", ("",), rules=(Rule("write", "*/checkpoints/*", "slow", 0.1, count=3),))


def _damage(rng: random.Random) -> Fault:
    how = rng.choice(("flip", "cut", "empty", "remove"))
    return Fault(
        "the newest checkpoint is damaged, and a rank is killed", ("unknown",), at=5, action="damage", value=how
    )


def _heartbeat(rng: random.Random) -> Fault:
    how = rng.choice(("remove", "garbage", "folder"))
    return Fault(
        "the heartbeat is gone or garbage, and a rank is killed", ("unknown",), at=_at(rng), action="heart", value=how
    )


def _stopped(rng: random.Random) -> Fault:
    return Fault(
        "a rank is stopped (SIGSTOP)", ("node", "unknown", "fabric"), ranks=2, rank=rng.randrange(2),
        at=_at(rng), action="SIGSTOP", settings={"DIST_TIMEOUT": "2"},
    )  # fmt: skip


# Simulated hosts


def _broken_node(rng: random.Random) -> Fault:
    host = rng.choice(("n1", "n2", "n3", "n4"))
    said = rng.choice(("killed by signal 9 (SIGKILL)", "killed by signal 11 (SIGSEGV)", "uncorrectable ECC error"))
    return Fault(
        "a host is broken and fails its check", ("node", "unknown"), hosts=4, broken=(host,), blames=(host,), value=said
    )


def _down_node(rng: random.Random) -> Fault:
    host, _ = rng.sample(("n1", "n2", "n3", "n4"), 2)
    blamed = rng.choice((host, ""))
    return Fault(
        "a host goes down",
        ("fabric", "unknown"),
        hosts=4,
        broken=(host,),
        down=(host,),
        blames=(blamed,),
        value="lost",
    )


def _wrong_node(rng: random.Random) -> Fault:
    host, other = rng.sample(("n1", "n2", "n3", "n4"), 2)
    return Fault(
        "a healthy host is named before the broken one", ("fabric", "node"), hosts=4, broken=(host,),
        blames=(other, host), value="lost",
    )  # fmt: skip


def _innocent(rng: random.Random) -> Fault:
    host = rng.choice(("n1", "n2", "n3", "n4"))
    said = rng.choice(("killed by signal 9 (SIGKILL)", "lost", "Watchdog caught collective operation timeout"))
    return Fault("a healthy host is named, once", ("fabric", "unknown"), hosts=4, blames=(host,), value=said)


def _everywhere(rng: random.Random) -> Fault:
    return Fault(
        "checks fail on every host, once", ("unknown",), hosts=4, blames=(rng.choice(("n1", "n2")),),
        value="killed by signal 9 (SIGKILL)", action="all",
    )  # fmt: skip


def _term(rng: random.Random) -> Fault:
    return Fault("exit code 143 with hours left", ("unknown",), hosts=4, blames=("",), value="143")


TABLE: tuple[tuple[int, Callable[[random.Random], Fault]], ...] = (
    *((weight, _signal(name)) for weight, name in ((5, "SIGKILL"), (3, "SIGSEGV"), (2, "SIGABRT"), (1, "SIGBUS"))),
    (3, _exit),
    *((3, _words(cause)) for cause in ("node", "fabric")),
    (2, _words("memory")),
    (2, _words("filesystem")),
    (2, _words("user", recoverable=False)),
    (3, _error),
    (1, _bug),
    (1, _import),
    (2, _memory),
    (4, _disk("in a checkpoint's file", "write", "*/checkpoints/*", "EIO")),
    (4, _disk("in a checkpoint's file", "write", "*/checkpoints/*", "ENOSPC")),
    (2, _disk("at the flush of a checkpoint", "fsync", "*/checkpoints/*", "EIO")),
    (2, _disk("when a checkpoint gets its name", "rename", "*/checkpoints/*", "ESTALE")),
    (2, _disk("in the metrics", "write", "*/metrics.jsonl", "EIO")),
    (1, _full),
    (3, _short),
    (2, _slow),
    (4, _damage),
    (3, _heartbeat),
    (1, _stopped),
    (14, _broken_node),
    (11, _down_node),
    (11, _wrong_node),
    (14, _innocent),
    (7, _everywhere),
    (7, _term),
)
"""How often a kind is drawn, and what draws it."""


def draw(count: int, seed: int) -> list[Fault]:
    """Return ``count`` faults; every kind once before the others are drawn."""
    rng = random.Random(seed)
    makers = [make for _, make in TABLE][:count]
    rest = rng.choices([make for _, make in TABLE], [weight for weight, _ in TABLE], k=max(0, count - len(makers)))
    chosen = [*makers, *rest]
    faults = [make(rng) for make in chosen]
    rng.shuffle(faults)
    return faults
