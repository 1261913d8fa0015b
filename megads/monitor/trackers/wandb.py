"""Weights & Biases, in a process of its own: its import, its network and its failures never meet a step.

That process follows ``metrics.jsonl`` (``wandb_process``), so a step waits for nothing of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from megads.config.run_files import METRICS
from megads.config.settings.log import WANDB_ID
from megads.errors import MegadsError
from megads.monitor.log import LOG
from megads.monitor.trackers.metrics_sink import Tracker, TrackerStart
from megads.text.secrets import hidden

CHILD = ("-m", "megads.monitor.trackers.wandb_process")
WAIT_S = 20.0  # at the end of a run, for what was not sent yet
RUN_ID = "wandb-run-id"  # in the run folder
NOT_FOR_IT = ("WANDB_MODE", "WANDB_DISABLED", "WANDB_NAME", "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR")
"""Variables that would contradict what the settings say."""


def open_tracker(start: TrackerStart) -> Wandb:
    """Return what hands rows to the process of Weights & Biases."""
    return Wandb(start.run_dir, start.iteration, start.env, run_id=start.run.track.wandb_id)


class Wandb(Tracker):
    """Starts a process that sends the rows of ``metrics.jsonl`` from now on, and watches it.

    Args:
        run_dir: whose ``config.yaml`` says project, names and mode; its files go under ``<run>/wandb``.
        iteration: of the checkpoint that the run resumes from; then it is the same run there too.
        env: this process's environment; the key is found in it or in ``~/.netrc`` by the library.
        command: of the process.
        run_id: of the run there that a new run continues with; empty: a new one.
    """

    name = "Weights & Biases"

    def __init__(
        self, run_dir: Path, iteration: int, env: Mapping[str, str], command: Sequence[str] = (), run_id: str = ""
    ):
        known = (run_dir / METRICS).stat().st_size if (run_dir / METRICS).is_file() else 0
        words = [*(command or (sys.executable, *CHILD)), str(run_dir), _run_id(run_dir, iteration, run_id), str(known)]
        if iteration or run_id:
            words.append("--resume")
        own = {name: value for name, value in env.items() if name not in NOT_FOR_IT}
        own["WANDB_ERROR_REPORTING"] = "false"
        self.env, self.run_dir = env, run_dir
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(words, **pipes, env=own, bufsize=0)
        self.reader = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self.reader.start()

    def write(self, row: Mapping[str, Any]) -> None:
        """Check that there is a process, which reads the row from its file."""
        if self.process.poll() is not None:
            self._end()
            raise MegadsError(f"its process ended with {self.process.returncode}")

    def close(self) -> None:
        """Report that no row follows."""
        self.write({})
        assert self.process.stdin is not None
        self.process.stdin.write(b"end\n")

    def settle(self) -> str:
        """Wait up to :data:`WAIT_S` until all is sent, or written where there is no network."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(WAIT_S)
        code = self.process.poll()
        self._end()
        if code is not None:
            return (
                f"wandb    its process ended with {code}; what it has is in the run folder under wandb" if code else ""
            )
        if (self.run_dir / "wandb").is_dir():
            return (
                f"wandb    not everything was sent within {WAIT_S:g} s; `wandb sync` in the run folder sends the rest"
            )
        missing = f"wandb    has nothing of this run: the library did not start within {WAIT_S:g} s"
        return f"{missing}; metrics.jsonl has everything"

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.reader.join(1.0)

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
