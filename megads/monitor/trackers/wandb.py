"""Weights & Biases, in a process of its own: its import, its network and its failures never meet a step.

Rows go into a pipe that this side never waits for; ``wandb_process`` takes them out.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from megads.config.settings.log import WANDB_ID
from megads.errors import MegadsError
from megads.monitor.log import LOG
from megads.text.secrets import hidden

CHILD = ("-m", "megads.monitor.trackers.wandb_process")
MOST_WAITING = 64 * 2**20  # bytes of rows that nobody has taken yet
WAIT_S = 20.0  # at the end of a run, for what was not sent yet
RUN_ID = "wandb-run-id"  # in the run folder
NOT_FOR_IT = ("WANDB_MODE", "WANDB_DISABLED", "WANDB_NAME", "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR")
"""Variables that would contradict what the settings say."""


class Wandb:
    """Hands rows to a process that talks to Weights & Biases.

    Args:
        run_dir: whose ``config.yaml`` says project, names and mode; its files go under ``<run>/wandb``.
        iteration: of the checkpoint that the run resumes from; then it is the same run there too.
        env: this process's environment; the key is found in it or in ``~/.netrc`` by the library.
        command: of the process.
        run_id: of the run there that a new run continues with; empty: a new one.
    """

    name = "Weights & Biases"
    every = 0

    def __init__(
        self, run_dir: Path, iteration: int, env: Mapping[str, str], command: Sequence[str] = (), run_id: str = ""
    ):
        words = [*(command or (sys.executable, *CHILD)), str(run_dir), _run_id(run_dir, iteration, run_id)]
        if iteration or run_id:
            words.append("--resume")
        own = {name: value for name, value in env.items() if name not in NOT_FOR_IT}
        own["WANDB_ERROR_REPORTING"] = "false"
        self.env, self.run_dir = env, run_dir
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own
        )
        assert self.process.stdin is not None
        self.pipe = self.process.stdin.fileno()
        os.set_blocking(self.pipe, False)
        self.waiting: deque[bytes] = deque()
        self.bytes = 0
        self.reader = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def write(self, row: Mapping[str, Any]) -> None:
        """Put a row into the pipe, or keep it until there is place."""
        finite = {k: v for k, v in row.items() if v is not None and not (isinstance(v, float) and not math.isfinite(v))}
        self._put(json.dumps(finite))

    def close(self) -> None:
        """Say that no row follows."""
        self._put("end")

    def settle(self) -> str:
        """Wait up to :data:`WAIT_S` until all is sent, or written where there is no network."""
        until = time.monotonic() + WAIT_S
        while self.waiting and time.monotonic() < until and self.process.poll() is None:
            self._flush()
            time.sleep(0.02)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.1, until - time.monotonic()))
        if self.process.poll() is None:
            self._end()
            if (self.run_dir / "wandb").is_dir():
                return (
                    f"wandb    not everything was sent within {WAIT_S:g} s; `wandb sync` in the run folder "
                    "sends the rest"
                )
            return (
                f"wandb    has nothing of this run: the library did not start within {WAIT_S:g} s; "
                "metrics.jsonl has everything"
            )
        code = self.process.returncode
        self._end()
        return f"wandb    its process ended with {code}; what it has is in the run folder under wandb" if code else ""

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.reader.join(1.0)

    def _put(self, line: str) -> None:
        if self.process.poll() is not None:
            self._end()
            raise MegadsError(f"its process ended with {self.process.returncode}")
        data = line.encode() + b"\n"
        self.waiting.append(data)
        self.bytes += len(data)
        self._flush()
        if self.bytes > MOST_WAITING:
            self._end()
            raise MegadsError("its process accepts no rows")

    def _flush(self) -> None:
        while self.waiting:
            data = self.waiting[0]
            try:
                done = os.write(self.pipe, data)
            except BlockingIOError:
                return
            self.bytes -= done
            if done == len(data):
                self.waiting.popleft()
            else:
                self.waiting[0] = data[done:]

    def _listen(self, lines: IO[bytes]) -> None:
        with lines:
            for line in lines:
                LOG.info("wandb    %s", hidden(line.decode(errors="replace").rstrip(), self.env))


def _run_id(run_dir: Path, iteration: int, asked: str = "") -> str:
    """Return the id under which this run is known there; a run that starts over is a new one, or what is asked for."""
    path = run_dir / RUN_ID
    if iteration and path.is_file() and WANDB_ID.fullmatch(known := path.read_text(encoding="ascii").strip()):
        return known
    new = asked or os.urandom(4).hex()
    path.write_text(new + "\n", encoding="ascii")
    return new
