"""How fast a step is on CPUs, side by side with what others write: Hugging Face, torch.compile by hand, DDP.

    python benchmarks/train_cpu.py [--rounds 9] [--steps 3] [--only native hf]

A Llama of 6 layers, width 256, 8 heads (4 for keys and values), ffn 704, 256 tokens, vocabulary 8192; micro-batch 2,
2 micro-batches, fp32, AdamW, clipping. Every contestant is one or two processes, each pinned to a core of its own with
one thread, started one after another; the time from its start to the end of its first step is the column "first step",
with what it imports and compiles. Then they wait, and rounds begin: in each every contestant runs its steps while
the others sleep, in an order that turns. Speeds are medians over rounds; ratios are medians of the ratios within a
round, so that a noisy neighbour hits both alike. "CPU" is the ratio of the processor seconds, which a neighbour
changes least. Ours is the whole program's step: sampling, schedule, engine, log line, metrics row; the others read a
batch that was made before. A number of ``torch.compile`` is reached after compilation.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # ranks are started by the path of this file

from benchmarks.train_cpu_peers import MICRO_BATCH, MICRO_BATCHES, SEQ, make_corpus  # noqa: E402

STEP_LIMIT_S = 900.0
TOKENS = MICRO_BATCH * MICRO_BATCHES * SEQ


@dataclass(frozen=True)
class Contestant:
    """Somebody who trains: a name, how many ranks, and what of ``train_cpu_peers`` makes its step."""

    name: str
    ranks: int
    kind: str  # of PEERS, or "ours"
    env: tuple[tuple[str, str], ...] = ()  # settings of ours


def _ours(name: str, ranks: int, **env: str) -> Contestant:
    return Contestant(name, ranks, "ours", tuple(env.items()))


CONTESTANTS = (
    Contestant("hf", 1, "hf"),
    Contestant("hf fused", 1, "hf_fused"),
    Contestant("bound", 1, "bound"),
    _ours("deepspeed", 1, ENGINE="deepspeed"),
    _ours("native", 1, ENGINE="native"),
    _ours("native compiled", 1, ENGINE="native", COMPILE="1"),
    Contestant("hf ddp", 2, "ddp"),
    _ours("deepspeed dp2", 2, ENGINE="deepspeed", DP="2"),
    _ours("native dp2", 2, ENGINE="native", DP="2"),
    _ours("native dp2 compiled", 2, ENGINE="native", DP="2", COMPILE="1"),
    _ours("deepspeed tp2", 2, ENGINE="deepspeed", TP="2"),
    _ours("native tp2", 2, ENGINE="native", TP="2"),
    _ours("native tp2 compiled", 2, ENGINE="native", TP="2", COMPILE="1"),
)
GOALS = (
    ("native", "hf", 1.08),
    ("native", "hf fused", 0.0),
    ("native", "bound", 0.0),
    ("native compiled", "hf", 1.08),
    ("native compiled", "hf fused", 1.08),
    ("native compiled", "bound", 0.97),
    ("native", "deepspeed", 0.0),
    ("native dp2", "hf ddp", 1.0),
    ("native dp2 compiled", "hf ddp", 1.0),
    ("native dp2", "deepspeed dp2", 0.0),
    ("native tp2", "deepspeed tp2", 1.25),
    ("native tp2 compiled", "deepspeed tp2", 1.25),
)
"""Ratios of speed that are shown, each with what it should reach; 0: nothing."""


class Team:
    """The processes of a contestant, asleep but for the steps they are asked for."""

    def __init__(self, who: Contestant, folder: Path, cores: list[int], port: int):
        self.who = who
        self.ranks: list[subprocess.Popen[str]] = []
        began = time.perf_counter()
        for rank in range(who.ranks):
            env = {
                **{name: value for name, value in os.environ.items() if name not in dict(who.env)},
                **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
                **{"RANK": str(rank), "WORLD_SIZE": str(who.ranks), "LOCAL_RANK": str(rank)},
                **{"LOCAL_WORLD_SIZE": str(who.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
                **{"MEGADS_DEVICE": "cpu", "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
                "USE_TF": "0",
            }
            words = [str(ROOT / "benchmarks/train_cpu_peers.py"), who.kind, str(folder), str(cores[rank % len(cores)])]
            settings = [f"{name}={value}" for name, value in who.env]
            with (folder / f"{who.name} {rank}.log".replace(" ", "-")).open("w") as log:
                self.ranks.append(
                    subprocess.Popen(
                        [sys.executable, *words, *settings],
                        env=env,
                        text=True,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                    )
                )
        self.log = folder / f"{who.name} 0.log".replace(" ", "-")
        self.first_s = 0.0
        try:
            self.run(1)
        except RuntimeError:
            self.stop()
            raise
        self.first_s = time.perf_counter() - began

    def run(self, steps: int) -> tuple[float, float]:
        """Have all ranks run steps; return their longest seconds and the sum of their processor seconds, per step."""
        for rank in self.ranks:
            assert rank.stdin is not None
            try:
                rank.stdin.write(f"{steps}\n")
                rank.stdin.flush()
            except BrokenPipeError:
                raise RuntimeError(self._why()) from None
        answers = [json.loads(line) for line in self._lines()]
        return max(wall for wall, _ in answers) / steps, sum(cpu for _, cpu in answers) / steps

    def _lines(self) -> Iterator[str]:
        with selectors.DefaultSelector() as waiting:
            for rank in self.ranks:
                assert rank.stdout is not None
                waiting.register(rank.stdout, selectors.EVENT_READ, rank.stdout)
            while waiting.get_map():
                ready = waiting.select(STEP_LIMIT_S)
                if not ready:
                    raise RuntimeError(f"{self.who.name}: no step in {STEP_LIMIT_S:g} s; {self._why()}")
                for key, _ in ready:
                    line = key.data.readline()
                    if not line:
                        raise RuntimeError(self._why())
                    waiting.unregister(key.data)
                    yield line

    def _why(self) -> str:
        last = self.log.read_text().strip().splitlines()[-1:] or ["nothing on stderr"]
        return f"{self.who.name}: ended, {last[0]}"

    def stop(self) -> None:
        """End the processes."""
        for rank in self.ranks:
            rank.kill()
            rank.communicate()


@contextmanager
def team(who: Contestant, folder: Path, cores: list[int]) -> Iterator[Team]:
    """Yield the running team of a contestant, after its first step.

    Raises:
        RuntimeError: one of its processes ended; with the last line it wrote.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    made = Team(who, folder, cores, port)
    try:
        yield made
    finally:
        made.stop()


def measure(names: list[str], rounds: int, steps: int, folder: Path) -> tuple[dict[str, Team], dict[str, list[tuple]]]:
    """Return the teams and for each the seconds and processor seconds of a step, round by round."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: ranks of one contestant run at the same time")
    print(f"{len(cores)} cores; every rank is pinned to one of the first two and has 1 thread", flush=True)
    found: dict[str, list[tuple]] = {}
    teams: dict[str, Team] = {}
    with ExitStack() as stack:
        for who in CONTESTANTS:
            if names and who.name not in names:
                continue
            try:
                teams[who.name] = stack.enter_context(team(who, folder, cores[:2]))
            except RuntimeError as error:
                print(f"left out: {error}", flush=True)
                continue
            teams[who.name].run(2)
            found[who.name] = []
            print(f"ready: {who.name}, first step after {teams[who.name].first_s:.1f} s", flush=True)
        order = list(teams)
        for number in range(rounds):
            turned = order[number % len(order) :] + order[: number % len(order)]
            for name in turned if number % 2 == 0 else reversed(turned):
                found[name].append(teams[name].run(steps))
            line = ", ".join(f"{name} {TOKENS * _data(name) / found[name][-1][0]:.0f}" for name in order)
            print(f"round {number + 1:2d}, tokens/s: {line}", flush=True)
    return teams, found


def _data(name: str) -> int:
    """Return the data-parallel degree: each of these ranks adds a batch."""
    who = next(each for each in CONTESTANTS if each.name == name)
    return who.ranks if who.kind == "ddp" or dict(who.env).get("DP") else 1


def report(teams: dict[str, Team], found: dict[str, list[tuple]]) -> None:
    """Print the tables."""
    print(f"\n{'contestant':20} {'ranks':>5} {'tokens/s':>9} {'CPU s/step':>10} {'first step s':>12}")
    for name, times in found.items():
        wall, cpu = (statistics.median(each) for each in zip(*times, strict=True))
        speed = TOKENS * _data(name) / wall
        print(f"{name:20} {teams[name].who.ranks:5d} {speed:9.0f} {cpu:10.3f} {teams[name].first_s:12.1f}")
    print(f"\n{'ratio of speeds':40} {'median':>6} {'of rounds':>15} {'CPU':>6} {'goal':>6}")
    for ours, theirs, goal in GOALS:
        if ours in found and theirs in found:
            pairs = list(zip(found[theirs], found[ours], strict=True))
            walls = [one[0] / other[0] for one, other in pairs]
            cpu = statistics.median(one[1] / other[1] for one, other in pairs)
            middle = statistics.median(walls)
            verdict = f"{goal:6.2f} {'reached' if middle >= goal else 'missed'}" if goal else ""
            spread = f"{min(walls):.3f} .. {max(walls):.3f}"
            print(f"{f'{ours} / {theirs}':40} {middle:6.3f} {spread:>15} {cpu:6.3f} {verdict}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="contestants, by name")
    parser.add_argument("--logs", help="folder for the ranks' stderr; a temporary one by default")
    options = parser.parse_args()
    if unknown := [name for name in options.only if name not in {each.name for each in CONTESTANTS}]:
        parser.error(f"{unknown[0]!r} is not one of {', '.join(each.name for each in CONTESTANTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.logs or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        make_corpus(folder)
        report(*measure(options.only, options.rounds, options.steps, folder))


if __name__ == "__main__":
    main()
