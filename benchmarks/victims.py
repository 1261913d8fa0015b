"""Training runs that are cheap to start, to be killed: a process that imports once and forks ranks, see kills.py."""

from __future__ import annotations

import gc
import importlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import NoReturn

import numpy as np

from megads.checkpoint.format.folders import iteration_of, list_checkpoints
from megads.checkpoint.format.verify import verify
from megads.config.derive import derive
from megads.config.run_folder import CONFIG, LOG_FILE, OUTCOME, save_config
from megads.config.sources.resolve import resolve
from megads.data.formats.writer import IndexedWriter
from megads.monitor.metrics import read_metrics
from megads.monitor.run_state.outcome import read_outcome

ROOT = Path(__file__).parents[1]
IMPORTED = (
    *("megads.train.worker", "megads.engine.build", "deepspeed", "deepspeed.runtime.zero.muon.muon_optimizer"),
    *(
        "setuptools",
        "distutils.ccompiler",
        "torch._dynamo",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
    ),
)
RANKS = 2
ITERATIONS = 14
LEFTOVERS = 3  # a checkpoint that is written, one that it replaces, one that is removed
POLL_S = 0.001
PATIENCE_S = 120.0  # for a start to come so far
SETTINGS = {
    "model.num_layers": "2",
    "model.hidden_size": "64",
    "model.num_heads": "4",
    "model.seq_length": "16",
    "model.hidden_dropout": "0.1",
    "model.attention_dropout": "0.1",
    "train.micro_batch": "2",
    "train.global_batch": "8",
    "train.train_iters": str(ITERATIONS),
    "train.eval_interval": "0",
    "data.tokenizer_type": "NullTokenizer",
    "data.num_workers": "0",
    "log.log_interval": "1",
    "checkpoint.failed_saves": "0",
}
VOCABULARY = 2000


class Wrong(AssertionError):
    """A checkpoint was lost or damaged."""


def write_data(folder: Path) -> str:
    """Write a token file and return its prefix."""
    rng = np.random.default_rng(0)
    with IndexedWriter(folder / "tokens", np.dtype(np.uint16)) as writer:
        for _ in range(40):
            writer.add_document(rng.integers(0, VOCABULARY - 1, 300))
        writer.finalize()
    return str(folder / "tokens")


def make_run_folder(run_dir: Path, prefix: str, overrides: Mapping[str, str]) -> None:
    """Make the run folder that the launcher would."""
    listed = run_dir.parent / "list.txt"
    listed.write_text(f"1.0 {prefix} one\n")
    shared = {"data.file_list": str(listed), "data.cache_dir": str(run_dir.parent / "cache")}
    more = {"model.vocab_size": str(VOCABULARY), **shared, **overrides}
    resolved = resolve(None, env={}, overrides={**SETTINGS, **more}, machine="generic", root=ROOT)
    derived = derive(resolved, num_hosts=1, ranks_per_host=RANKS, vocab_size=VOCABULARY)
    (run_dir / LOG_FILE).parent.mkdir(parents=True)
    save_config(derived.run, derived.origins, run_dir / CONFIG)


# The process that forks ranks


def serve(pipe: Connection) -> None:
    """Fork the ranks of a run whenever a run folder and an environment for each comes; wait for a process id."""
    # What a rank imports on its way to the end of a run, some of it deep in DeepSpeed.
    for name in IMPORTED:
        importlib.import_module(name)
    # DeepSpeed collects garbage again and again while it starts; what is here already is none.
    gc.freeze()
    if threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        raise AssertionError("a process with threads cannot be forked safely")

    pipe.send(os.getpid())
    while True:
        try:
            message = pipe.recv()
        except EOFError:
            return
        if isinstance(message, int):
            pipe.send(os.waitpid(message, 0)[1])
            continue
        run_dir, environments = message
        pids = []
        for env in environments:
            pid = os.fork()
            if pid == 0:
                pipe.close()
                _become_rank(run_dir, env)
            pids.append(pid)
        pipe.send(pids)


def _become_rank(run_dir: Path, env: dict[str, str]) -> NoReturn:
    try:
        os.environ.update(env)
        handle = os.open(run_dir / f"rank-{env['RANK']}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for number in (1, 2):
            os.dup2(handle, number)
        from megads.train.worker import main

        main(run_dir / CONFIG, env)
    finally:
        os._exit(3)


class Zygote:
    """The other side of :func:`serve`."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.victims", str(theirs.fileno())],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        )
        theirs.close()
        self._pipe.recv()

    def start(self, run_dir: Path, attempt: int) -> list[int]:
        """Start the ranks of a run and return their process ids."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
        shared |= {"MASTER_PORT": str(port), "MEGADS_ATTEMPT": str(attempt)}
        (run_dir / OUTCOME).unlink(missing_ok=True)
        self._pipe.send((run_dir, [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(RANKS)]))
        pids: list[int] = self._pipe.recv()
        return pids

    def wait(self, pid: int) -> None:
        """Wait until a rank is gone."""
        self._pipe.send(pid)
        self._pipe.recv()

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.wait(timeout=10)

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# One run


@dataclass
class Victim:
    """A run that is started, killed and looked at."""

    run_dir: Path
    zygote: Zygote
    rng: random.Random
    attempts: int = 0

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.run_dir / "checkpoints"

    def done(self) -> int:
        """Return the last step that was reported."""
        return max((row["iteration"] for row in read_metrics(self.run_dir / "metrics.jsonl")), default=0)

    def losses(self) -> list[tuple[int, float]]:
        """Return the loss of every step."""
        rows = read_metrics(self.run_dir / "metrics.jsonl")
        return [(row["iteration"], row["lm_loss"]) for row in rows if "lm_loss" in row]

    def unfinished(self) -> list[str]:
        """Return what saves left that did not end."""
        return [path.name for path in self.checkpoints.glob("*.tmp")]

    def log(self) -> str:
        """Return what rank 0 said."""
        path = self.run_dir / LOG_FILE
        return path.read_text() if path.is_file() else ""

    def start(self) -> list[int]:
        """Start the ranks."""
        self.attempts += 1
        return self.zygote.start(self.run_dir, self.attempts)

    def finish(self) -> None:
        """Start it and leave it alone until it is done."""
        for pid in self.start():
            self.zygote.wait(pid)
        outcome = read_outcome(self.run_dir)
        if outcome is None or outcome.exit_code != 0:
            raise Wrong(f"{self.run_dir}: did not end well: {outcome}\n{self.errors()}")

    def errors(self) -> str:
        """Return what the ranks said last."""
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.run_dir.glob("rank-*.err")))

    def kill(self) -> str:
        """Start it and kill one rank or all of them; return where it was, empty if it was done before."""
        pids = self.start()
        moment = self.rng.choices((self._within_save, self._after_step, self._in_set_up), (6, 3, 1))[0]
        came = moment(pids)
        place = "" if not came else ("save" if self.unfinished() else came)
        order = self.rng.sample(pids, len(pids))
        alone = self.rng.random() < 0.5
        for pid in order:
            _kill(pid)
            if alone:
                # The others continue, wait, or hear of it and leave.
                time.sleep(self.rng.choice((0.0, 0.01, 0.05, 0.2)))
        for pid in pids:
            self.zygote.wait(pid)
        return f"{'one rank' if alone else 'all'} in {place}" if place else ""

    def _within_save(self, pids: list[int]) -> str:
        """Wait until the n-th save from now begins, and a moment."""
        for _ in range(self.rng.randint(1, 4)):
            if not self._await(lambda: bool(self.unfinished()), pids):
                return ""
            if not self._await(lambda: not self.unfinished(), pids):
                return ""
        if not self._await(lambda: bool(self.unfinished()), pids):
            return ""
        time.sleep(self.rng.choice((0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.04)))
        return "step"

    def _after_step(self, pids: list[int]) -> str:
        """Wait for the n-th step from now, and a moment."""
        metrics = self.run_dir / "metrics.jsonl"
        before = metrics.stat().st_ino if metrics.exists() else 0
        if not self._await(lambda: metrics.exists() and metrics.stat().st_ino != before, pids):
            return ""
        size, rows = metrics.stat().st_size, self.rng.randint(1, 12)
        # A row has about 500 bytes, that of a save a tenth.
        if not self._await(lambda: metrics.stat().st_size > size + 300 * rows, pids):
            return ""
        time.sleep(self.rng.uniform(0.0, 0.05))
        return "step"

    def _in_set_up(self, pids: list[int]) -> str:
        time.sleep(self.rng.uniform(0.0, 1.0))
        return "set-up or step" if self._alive(pids) else ""

    def _alive(self, pids: list[int]) -> bool:
        return read_outcome(self.run_dir) is None and all(Path(f"/proc/{pid}").exists() for pid in pids)

    def _await(self, condition: Callable[[], bool], pids: list[int]) -> bool:
        """Wait for ``condition``; return whether it came before the run ended."""
        until, looked = time.monotonic() + PATIENCE_S, 0
        while not condition():
            time.sleep(POLL_S)
            looked += 1
            if looked % 50 == 0 and not self._alive(pids):
                return False
            if time.monotonic() > until:
                raise Wrong(f"{self.run_dir}: no progress\n{self.errors()}")
        return True

    def look(self, most_lost: int) -> int:
        """Check what a kill left; return how many steps have to be done again."""
        found = list_checkpoints(self.checkpoints)
        for path in found:
            verify(path)
        if len(self.unfinished()) > LEFTOVERS:
            raise Wrong(f"{self.checkpoints}: {len(self.unfinished())} unfinished saves: {self.unfinished()}")
        newest = iteration_of(found[-1]) if found else 0
        lost = max(0, self.done() - newest)
        if lost > most_lost:
            raise Wrong(f"{self.run_dir}: {lost} steps are lost, from {newest} to {self.done()}")
        return lost

    def check_resumed(self, newest: Path | None, said_before: int) -> None:
        """Check that the last start resumed from ``newest``, as far as it came so far."""
        said = self.log()[said_before:]
        for line in said.splitlines():
            if "passed over" in line:
                raise Wrong(f"{self.run_dir}: {line}")
            match = re.search(r"(?:(?:resume|start) +from|init) +(\S+)", line)
            if match and newest is not None and Path(match[1].rstrip(",")).name != newest.name:
                raise Wrong(f"{self.run_dir}: {line}, not from {newest.name}")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
