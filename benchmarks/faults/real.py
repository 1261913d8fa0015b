"""Faults in real runs: the command, its launcher and its ranks, forked by one process that has imported everything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.faults.kinds import ITERATIONS, SAVE_INTERVAL, Fault
from benchmarks.faults.planted import text_of
from benchmarks.faults.tally import Result
from megads.checkpoint.format.folders import iteration_of, list_checkpoints
from megads.checkpoint.format.verify import verify
from megads.errors import MegadsError
from megads.monitor.metrics import read_metrics
from megads.monitor.run_state.attempts import read_attempts
from tests.e2e.conftest import PLANTED, ROOT, SMALL
from tests.forks.popen import Popen

SETTINGS = {
    **SMALL,
    "NLAYERS": "1",
    "HIDDEN": "32",
    "HEADS": "2",
    "NUM_KV_HEAD": "2",
    "FFN_HIDDEN_SIZE": "64",
    "SEQ": "16",
    "GLOBAL_BATCH": "4",
    "MICRO_BATCH": "2",
    "TRAIN_ITERS": str(ITERATIONS),
    "SAVE_INTERVAL": str(SAVE_INTERVAL),
    "EVAL_INTERVAL": "0",
    "REPLAY_ROWS": "0",
}
LIMIT_S = 300.0


class Real:
    """Runs with faults in one folder, and one without for each number of ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole: dict[int, list[float]] = {}

    def losses(self, ranks: int) -> list[float]:
        """Return the losses of a run without a fault."""
        if ranks not in self._whole:
            code = self._train(f"whole-{ranks}", ranks, f"{ROOT}", {})
            if code:
                raise AssertionError((self.folder / f"whole-{ranks}.said").read_text()[-2000:])
            self._whole[ranks] = self._losses(self.folder / f"whole-{ranks}")
        return self._whole[ranks]

    def run(self, fault: Fault, number: int) -> Result:
        """Have a run suffer a fault."""
        expected, name = self.losses(fault.ranks), f"run-{number}"
        planted = self.folder / f"{name}.planted"
        planted.mkdir()
        (planted / "sitecustomize.py").write_text(PLANTED + text_of(fault, self.folder / f"{name}.counts"))
        code = self._train(name, fault.ranks, f"{planted}:{ROOT}", dict(fault.settings))
        run_dir = self.folder / name
        attempts = read_attempts(run_dir)
        found = [each for each in attempts if each.exit_code]
        return Result(
            fault.kind,
            causes=tuple(each.cause for each in found) or ("",),
            verdict=found[-1].verdict if found else "",
            recovered=code == 0 and self._losses(run_dir) == expected,
            lost=self._lost(run_dir, expected, attempts[-1].reached if attempts else 0, fault.most_lost),
            excluded=tuple(host for each in attempts for host in each.excluded),
            code=code,
        )

    def _train(self, name: str, ranks: int, path: str, settings: dict[str, str]) -> int:
        kept = {each: os.environ[each] for each in ("PATH", "HOME", "LANG", "TMPDIR") if each in os.environ}
        given = {"DATA_CACHE_PATH": str(self.folder / "cache"), "RUN_DIR": name, "TP": str(ranks), **settings}
        with open(self.folder / f"{name}.said", "wb") as said:
            process = Popen(
                [sys.executable, "-m", "megads", "train", "--max-restarts", "3"],
                cwd=self.folder, env={**kept, "PYTHONPATH": path, **SETTINGS, **given},
                stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            )  # fmt: skip
            try:
                return process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                return 124

    def _losses(self, run_dir: Path) -> list[float]:
        rows = {row["iteration"]: row["lm_loss"] for row in read_metrics(run_dir / "metrics.jsonl") if "lm_loss" in row}
        return [rows[key] for key in sorted(rows)]

    def _lost(self, run_dir: Path, expected: list[float], reached: int, most: int) -> str:
        """Return what is lost, beyond the steps since the last save."""
        found = list_checkpoints(run_dir / "checkpoints")
        try:
            for path in found:
                verify(path)
        except MegadsError as error:
            return str(error)
        losses = self._losses(run_dir)
        if losses != expected[: len(losses)]:
            return f"losses {losses} are not those of a run without a fault, {expected}"
        newest = max(map(iteration_of, found), default=0)
        return f"{reached - newest} steps" if reached - newest > most else ""
