"""A rank without a model: does what its MODE says and leaves files for the test to read."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from megads.cluster.ranks import find_ranks
from megads.launch.supervise.rank_parent import stand_guard

RUN_DIR, MODE = Path(sys.argv[1]), sys.argv[2]
INFO = find_ranks()
if os.environ.get("MEGADS_IN_PLACE") != "1":
    stand_guard(RUN_DIR, os.environ)


def leave(exit_code: int) -> None:
    if INFO.rank == 0:
        (RUN_DIR / "outcome.json").write_text(json.dumps({"exit_code": exit_code, "message": "", "iteration": 3}))


WAIT_S = 300.0  # longer than any test: whoever waits for the end of this would fail


def wait() -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        time.sleep(0.05)


def mark(what: str) -> None:
    (RUN_DIR / f"{what}-{INFO.rank}").touch()


def stop_on_usr1() -> None:
    heard = []
    signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    mark("ready")
    end = time.monotonic() + WAIT_S
    while not heard and time.monotonic() < end:
        time.sleep(0.05)
    if heard:
        mark("usr1")
        leave(75)


def stop_on_file() -> None:
    mark("ready")
    end = time.monotonic() + WAIT_S
    while not (RUN_DIR / "stop").exists() and time.monotonic() < end:
        time.sleep(0.05)
    leave(75)


def meet() -> None:
    mark("ready")
    while not all((RUN_DIR / f"ready-{rank}").exists() for rank in range(INFO.world_size)):
        time.sleep(0.01)


def raise_on_rank_1() -> None:
    meet()
    if INFO.rank == 1:
        try:
            raise ArithmeticError("rank 1 is broken")
        except ArithmeticError:
            sys.stderr.write(f"[rank {INFO.rank}] {traceback.format_exc()}")
            sys.stderr.flush()
            (RUN_DIR / "outcome.json").write_text('{"exit_code": 1, "message": "", "iteration": 3}')
            os._exit(1)
    wait()


def kill_rank_1() -> None:
    meet()
    if INFO.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    wait()


def stop_rank_1() -> None:
    meet()
    if INFO.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    stop_on_file()


def hang() -> None:
    """Wait for a rank 1 that is stuck, as ranks of a run do; their watchdogs end them."""
    from datetime import timedelta

    from megads.comm.rendezvous import connect_again, meet
    from megads.train.fault import hang_report as positions
    from megads.train.fault import watchdog

    watchdog.TICK_S, watchdog.COLLECT_S, watchdog.SPOKESMAN_S = 0.1, 1.0, 0.5
    watchdog.ASK_S, positions.ANSWER_S = 0.3, 2.0
    store = meet(INFO, 30.0, os.environ)
    board = positions.Board(lambda: connect_again(os.environ, INFO.rank), RUN_DIR / "log")
    watch = watchdog.Watchdog(INFO.rank, INFO.world_size, RUN_DIR, 2.0, board)
    watch.start()
    for _ in range(2):
        watch.enter("step")
    mark("ready")
    if INFO.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    store.wait(["never"], timedelta(seconds=WAIT_S))


def leave_without_a_word() -> None:
    meet()
    if INFO.rank == 1:
        os._exit(7)
    wait()


def never_end() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    mark("ready")
    wait()


def report_failure_and_hang() -> None:
    leave(1)
    never_end()


def tell() -> None:
    facts = {"rank": INFO.rank, "world_size": INFO.world_size, "local_rank": INFO.local_rank}
    facts |= {"local_size": INFO.local_size, "family": INFO.family, "env": dict(os.environ)}
    (RUN_DIR / f"rank-{INFO.rank}.json").write_text(json.dumps(facts))
    leave(0)


def wrong_input() -> None:
    leave(2)
    sys.exit(2)


MODES = {
    "tell": tell,
    "usr1": stop_on_usr1,
    "file": stop_on_file,
    "raise": raise_on_rank_1,
    "killed": kill_rank_1,
    "stopped": stop_rank_1,
    "hang": hang,
    "wordless": leave_without_a_word,
    "stubborn": never_end,
    "failed": report_failure_and_hang,
    "wrong": wrong_input,
    "silent": lambda: None,
}
MODES[MODE]()
