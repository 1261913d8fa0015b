"""What telling costs: steps of 50 ms with logging, timing, metrics and trackers against the same with all of it off.

    python benchmarks/logging_overhead.py [--rounds 15] [--steps 20] [--step-ms 50]
    python benchmarks/logging_overhead.py --wandb-away     # a key is set, and nothing listens where W&B should be

The loop, the log, the metrics file and the trackers are the program's own; the engine is
scripted: a step of 4 micro-batches with 200 sections of forward, backward, communication and
optimizer, which takes exactly its 50 ms by sleeping what is left of them, as a host does whose
device computes. Rounds of the two runs alternate, so that a noisy neighbour hits both alike.
Prints the cost of each part in the training thread, and the medians of both runs' steps.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from megads.cluster.ranks import find_ranks
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.derive import derive
from megads.config.run_folder import save_config
from megads.config.sources.resolve import Resolved, resolve
from megads.device.vendor import vendor
from megads.engine.base import StepResult
from megads.monitor.log import LOG, start_log
from megads.monitor.trackers.registry import open_trackers
from megads.timing.sections import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, section
from megads.train.fault.stop import StopRequest
from megads.train.loop import Loop
from megads.train.setup import Training

ROOT = Path(__file__).parents[1]
OFF = {"track.tensorboard": "off", "track.csv": "false", "track.wandb_mode": "disabled"}
ON = {"track.tensorboard": "on", "track.csv": "true"}
EVERY_TAG = {f"track.log_{name}": "true" for name in ("timers", "batch_size", "validation_ppl", "memory", "world_size")}
PASSES, COLLECTIVES = 4, 24  # a step has 4 x (24 + 24) collectives, each a section inside a pass
GOAL, GOAL_AWAY = 0.01, 0.02


class Scripted:
    """An engine whose step takes ``step_s``, whatever part of it the sections take."""

    def __init__(self, step_s: float):
        self.step_s, self.module = step_s, nn.Linear(1, 1)
        self.processor_s = 0.0  # of all steps

    def train_step(self, batches: Any, lr: float, **more: Any) -> StepResult:
        """Enter the sections of a step, and sleep for the rest of it."""
        until, processor = time.perf_counter() + self.step_s, time.thread_time()
        for _ in range(PASSES):
            for name in (FORWARD, BACKWARD):
                with section(name):
                    for _ in range(COLLECTIVES):
                        with section(COMMUNICATION):
                            pass
        with section(OPTIMIZER):
            pass
        while (left := until - time.perf_counter()) > 0:
            # A sleep ends late, by the system's timer; the last bit is waited for awake.
            if left > 0.001:
                time.sleep(left - 0.001)
        result = StepResult(torch.tensor(2.0), 1.0, False, 1.0)
        self.processor_s += time.thread_time() - processor
        return result


class Costs:
    """What is spent in functions, by name: seconds of the wall and of the processor."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Count ``owner.method``."""
        work = getattr(owner, method)
        self.calls[name] = []

        def call(*args: Any, **options: Any) -> Any:
            wall, processor = time.perf_counter(), time.thread_time()
            try:
                return work(*args, **options)
            finally:
                self.calls[name].append((time.perf_counter() - wall, time.thread_time() - processor))

        setattr(owner, method, call)

    def table(self) -> str:
        """Return a line for each function; the median call, of which every step has one."""
        lines = [f"{'us a step':50} {'wall':>7} {'cpu':>7}"]
        for name, calls in self.calls.items():
            wall, processor = (1e6 * statistics.median(column) for column in zip(*calls, strict=True))
            lines.append(f"{name:50} {wall:7.0f} {processor:7.0f}")
        return "\n".join(lines)


def settings(overrides: dict[str, str], folder: Path) -> Resolved:
    """Return a derived run of one rank."""
    base = {
        "name": "overhead",
        "model.num_layers": "2",
        "model.hidden_size": "32",
        "model.num_heads": "2",
        "model.seq_length": "32",
        "model.vocab_size": "128",
        "train.micro_batch": "1",
        "train.grad_acc_steps": str(PASSES),
        "train.train_iters": "1000000",
        "stability.rounding_interval": "0",  # of weights, of which there are none
        "data.tokenizer_type": "NullTokenizer",
        "dir": str(folder),
        **overrides,
    }
    asked = resolve(None, env={}, overrides=base, machine="cpu", root=ROOT)
    return derive(asked, num_hosts=1, ranks_per_host=1, vocab_size=128)


class Batches:
    """Batches that are ready."""

    def __init__(self) -> None:
        self.batch = torch.zeros(1, 33, dtype=torch.int64)

    def __next__(self) -> torch.Tensor:
        return self.batch


class Run:
    """One run whose steps are done one by one."""

    def __init__(self, folder: Path, overrides: dict[str, str], env: dict[str, str], step_s: float, *, tells: bool):
        folder.mkdir()
        resolved = settings(overrides, folder)
        save_config(resolved.run, resolved.origins, folder / "config.yaml")
        device, groups = torch.device("cpu"), Groups(Grid(), 0)
        self.engine = Scripted(step_s)
        self.tracks = None
        if tells:
            self.tracks = open_trackers(resolved.run, folder, env, iteration=0, samples=0, world_size=1)
        training = Training(
            resolved.run,
            folder,
            groups,
            vendor({"MEGADS_DEVICE": "cpu"}),
            device,
            Scripted(step_s),
            {},
            None,  # type: ignore[arg-type]
        )
        stop = StopRequest(folder, groups, device, in_place=False)
        self.loop = Loop(training, stop, self.tracks)
        self.loop.probes.is_first = False  # the memory of an engine that has none
        self.loop.remaining.start()
        self.batches, self.took, self.processor = Batches(), list[float](), list[float]()

    def steps(self, count: int) -> None:
        """Do ``count`` steps, each with the question whether to stop behind it."""
        for _ in range(count):
            started = time.perf_counter()
            processor, engine = time.thread_time(), self.engine.processor_s
            self.loop.step(self.batches)  # type: ignore[arg-type]
            self.loop.why_stop()
            self.took.append(time.perf_counter() - started)
            self.processor.append(time.thread_time() - processor - (self.engine.processor_s - engine))

    def close(self) -> None:
        """Close the trackers; how long they then need is not a step's."""
        if self.tracks is not None:
            self.tracks.close()
            self.tracks.settle()


def watched(run: Run) -> Costs:
    """Return what counts the parts of ``run``."""
    costs = Costs()
    tracks, timing = run.tracks, run.loop.timing
    assert tracks is not None
    assert run.loop.reporter is not None
    costs.watch(timing, "step_done", "adding up the step's times")
    costs.watch(run.loop.reporter, "step", "handing the step's numbers over")
    costs.watch(run.loop.reporter, "_log", "beside the training: console line and log file")
    costs.watch(tracks.file, "write", "beside the training: metrics.jsonl")
    for tracker in tracks.trackers:
        costs.watch(tracker, "write", f"beside the training: {tracker.name}")
    return costs


def marks_s() -> float:
    """Return the seconds that the sections of a step cost more with a clock than without one."""
    from megads.device.timeline import HostTimeline
    from megads.timing.step_times import StepClock

    engine, clock = Scripted(0.0), StepClock(HostTimeline())

    def seconds(work: Callable[[], object]) -> float:
        found = []
        for _ in range(200):
            started = time.perf_counter()
            work()
            found.append(time.perf_counter() - started)
        return statistics.median(found)

    def timed() -> None:
        with clock.running():
            engine.train_step((), 0.0)

    return seconds(timed) - seconds(lambda: engine.train_step((), 0.0))


def alternate(off: Run, on: Run, rounds: int, steps: int) -> None:
    """Do the rounds of both."""
    for number in range(rounds):
        for run in (off, on) if number % 2 else (on, off):
            if run is off:
                LOG.setLevel(logging.ERROR)
            run.steps(steps)
            LOG.setLevel(logging.INFO)


def verdict(off: Run, on: Run, step_s: float, inside_s: float, goal: float) -> bool:
    """Print both runs' steps; return whether the goal is met."""
    medians = {}
    for name, run in (("off", off), ("on", on)):
        took, processor = statistics.median(run.took), statistics.median(run.processor)
        medians[name] = (took, processor)
        outside = f"{1e6 * (took - step_s):6.0f} us outside the engine, {1e6 * processor:5.0f} us of them at work"
        print(f"{name:4} {1000 * took:8.3f} ms a step, {outside}")
    took, processor = (on - off + inside_s for off, on in zip(medians["off"], medians["on"], strict=True))
    marks = f", {1e6 * inside_s:.0f} us of them for marks inside the engine" if inside_s else ""
    print(f"slower by {took / medians['off'][0]:.2%}{marks}; goal: under {goal:.0%}")
    print(f"at work for {processor / step_s:.2%} more, which is what it costs where nobody else wants the processor")
    return took / medians["off"][0] < goal


def wandb_settings(away: bool) -> tuple[dict[str, str], dict[str, str], str]:
    """Return settings and environment for W&B, and what is said of it."""
    env = dict(os.environ)
    if find_spec("wandb") is None:
        return {"track.wandb_mode": "disabled"}, env, "not installed"
    if not away:
        return {"track.wandb_mode": "offline"}, env, "offline"
    nowhere = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "0" * 40}
    return {"track.wandb_mode": "online", "track.wandb_timeout_s": "5"}, {**env, **nowhere}, "online, nothing listens"


def runs(folder: Path, step_s: float, away: bool) -> tuple[Run, Run, str]:
    """Return the run with everything off, the one with everything on, and what is said of W&B."""
    wandb, env, said = wandb_settings(away)
    if away:  # the difference is W&B alone
        return (
            Run(folder / "off", OFF, env, step_s, tells=True),
            Run(folder / "on", {**OFF, **wandb}, env, step_s, tells=True),
            said,
        )
    quiet = {**OFF, "times.split": "false", "log.log_interval": "1000000000"}
    loud = {**ON, **EVERY_TAG, **wandb}
    return Run(folder / "off", quiet, env, step_s, tells=False), Run(folder / "on", loud, env, step_s, tells=True), said


def main() -> int:
    """Measure and print; return 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--wandb-away", action="store_true", help="only W&B, with a key and without a network")
    options = parser.parse_args()
    torch.set_num_threads(1)
    step_s, away = options.step_ms / 1000, options.wandb_away
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # Lines go to stderr and to the run's log file, as in a run; nobody here reads them.
        sys.stderr = open(folder / "stderr", "w")  # noqa: SIM115 - until the process ends
        start_log(find_ranks({}).rank, "info", folder / "log.txt")
        off, on, said = runs(folder, step_s, away)
        costs = watched(on)
        if not away:  # there the beginning, while the server is waited for, is what counts
            for run in (off, on):
                run.steps(5)
                run.took.clear(), run.processor.clear()
            for calls in costs.calls.values():
                calls.clear()
        began = time.perf_counter()
        alternate(off, on, options.rounds, options.steps)
        print(f"{len(on.took)} steps each, in {time.perf_counter() - began:.0f} s; W&B: {said}")
        print(costs.table())
        inside = 0.0 if away else marks_s()
        if inside:
            print(f"{'setting 400 marks of 200 sections':50} {1e6 * inside:7.0f}")
        met = verdict(off, on, step_s, inside, GOAL_AWAY if away else GOAL)
        closing = time.perf_counter()
        for run in (off, on):
            run.close()
        print(f"trackers closed in {time.perf_counter() - closing:.1f} s")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
