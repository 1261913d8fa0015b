"""A running run as a screen of text, and as one line."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from megads.config.run_files import CONFIG, LOG_FILE, METRICS
from megads.errors import EXIT_FAILED, EXIT_STOPPED, plain
from megads.monitor.plots.sketch import loss_sketch
from megads.monitor.plots.source import settings_of
from megads.monitor.run_state import runs
from megads.monitor.run_state.follow import Follower
from megads.monitor.run_state.outcome import read_outcome
from megads.monitor.run_state.runs import DONE, FAILED, LOST, STARTING, STOPPED, WAITING, State, number
from megads.monitor.throughput import mfu_text
from megads.storage.open_file import open_binary
from megads.text.units import clock, count, duration, seconds, size

LOG_TAIL = 1 << 14  # bytes
LOG_LINES = 4
RESTART_S = 120.0  # for a run that failed to be started again
LOST_S = 60.0  # more, for a run that was seen alive
LAST_WORD = "not restarted"  # of a launcher that could start it again
STAMP = re.compile(r"^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d+ ")
MEGATRON = re.compile(r"^[\d:]* + (iteration +\d+/|validation loss at iteration)")
STRAGGLER = "straggler: "
COUNTERS = {"skipped_iterations": "skipped", "rejected_iterations": "rejected", "rollbacks": "rollbacks"}


class Watch:
    """Looks at one run again and again.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.rows = Follower(folder / METRICS)
        self.settings: dict[str, Any] = {}
        self.state = State(WAITING)
        self.log: list[str] = []
        self._config = 0.0
        self._alive = False  # was it ever, while we looked
        self._lost_since = 0.0

    def poll(self, now: float | None = None) -> bool:
        """Look once; return whether there are new rows."""
        now = time.time() if now is None else now
        changed = runs.changed_at(self.folder / CONFIG)
        if changed != self._config:
            self.settings, self._config = settings_of(self.folder), changed
        new = self.rows.poll()
        self.state = runs.state_of(self.folder, self.settings, now)
        self.log = log_lines(self.folder / LOG_FILE)
        if self.state.name == LOST:
            self._lost_since = self._lost_since or now
        else:
            self._lost_since = 0.0
            self._alive = self._alive or not self.state.ended
        return new

    def is_over(self, now: float | None = None) -> bool:
        """Return whether nothing more is to be expected of the run."""
        now = time.time() if now is None else now
        if self.state.name == LOST:
            return not self._alive or now - self._lost_since > LOST_S
        if self.state.name == FAILED and self.settings.get("launch.max_restarts"):
            is_final = any(LAST_WORD in line for line in self.log)
            return is_final or now - runs.last_change(self.folder) > RESTART_S
        return self.state.ended

    def exit_code(self) -> int:
        """Return 0 for a run that is done or running, 75 for one that stopped, else what it ended with."""
        if self.state.name == STOPPED:
            return EXIT_STOPPED
        if self.state.name in (FAILED, LOST):
            outcome = read_outcome(self.folder)
            code = outcome.exit_code if outcome else 0
            return code if 0 < code < 256 else EXIT_FAILED
        return 0

    def headline(self) -> str:
        """Return the run's state and why."""
        why = f": {self.state.why}" if self.state.why else ""
        return plain(f"{self.folder}  {self.state.name}{why}")

    def line(self) -> str:
        """Return where the run is, on one line."""
        step = self.step()
        if not step:
            return self.headline()
        parts = [self._progress(), *self._numbers(), *self._speeds(), *self._counters()]
        parts += [f"{METRICS}: {damage}"] if (damage := self._damage()) else []
        return " | ".join([*parts, *([self.state.name] if self.state.name != "running" else [])])

    def screen(self, width: int, height: int) -> list[str]:
        """Return lines of at most ``width`` characters that fit ``height`` lines."""
        lines = [self.headline()]
        lines += [f"{METRICS}: {damage}"] if (damage := self._damage()) else []
        if self.step():
            lines += [self._bar(width), "  ".join(self._numbers()), "  ".join([*self._speeds(), *self._counters()])]
        elif self.state.name in (WAITING, STARTING):
            lines.append("no step yet")
        straggler = next((line for line in reversed(self.log) if STRAGGLER in line), "")
        lines += [straggler.partition(STRAGGLER)[1] + straggler.partition(STRAGGLER)[2]] if straggler else []
        tail = self.log[-LOG_LINES:]
        left = height - len(lines) - len(tail) - 2
        columns = self.rows.columns()
        if left >= 8 and any(len(column.x) > 1 for column in columns.values()):
            lines += ["", *loss_sketch(columns, min(width, 110), min(left, 18)).splitlines()]
        return [plain(line[:width]) for line in [*lines, "", *tail]]

    def _damage(self) -> str:
        with suppress(OSError):
            return self.rows.damage.text(self.rows.path)
        return ""

    def step(self) -> dict[str, Any]:
        """Return the last step's row, empty before the first."""
        return self.rows.steps[-1] if self.rows.steps else {}

    def _total(self) -> int:
        total = self.settings.get("train.train_iters")
        return total if isinstance(total, int) else 0

    def _progress(self) -> str:
        done, total = self.step()["iteration"], self._total()
        return f"step {done}/{total}" if total else f"step {done}"

    def _bar(self, width: int) -> str:
        done, total, left_s = self.step()["iteration"], self._total(), self.left_s()
        words = f"{self._progress()} {min(1.0, done / total):.0%}" if total else self._progress()
        if left_s:
            now = time.time()
            words += f"  ETA {duration(left_s)}, at {clock(now + left_s, now)}"
        room = min(60, width - len(words) - 4)
        if not total or room < 10:
            return words
        full = round(room * min(1.0, done / total))
        return f"[{'#' * full}{'-' * (room - full)}] {words}"

    def left_s(self) -> float:
        """Return the seconds that the steps left will take at the present speed, without validations and saves."""
        step_s, total = self.rows.median("step_time_s"), self._total()
        if self.state.name == DONE or not step_s or not total:
            return 0.0
        return max(0, total - int(self.step()["iteration"])) * step_s

    def _numbers(self) -> list[str]:
        step, validation = self.step(), self.rows.validation
        shown = [("loss", "lm_loss", "{:.4f}"), ("lr", "learning_rate", "{:.2e}"), ("grad norm", "grad_norm", "{:.3f}")]
        parts = [f"{name} {form.format(step[key])}" for name, key, form in shown if number(step, key) is not None]
        if number(validation, "valid_loss") is not None:
            parts.insert(1, f"validation {validation['valid_loss']:.4f} (step {validation['iteration']})")
        return parts

    def _speeds(self) -> list[str]:
        tokens, step_s = (self.rows.median(key) for key in ("tokens_per_s", "step_time_s"))
        mfu = mfu_text(*(self.rows.median(key) for key in ("mfu", "mfu_full", "mfu_causal")))
        memory = number(self.step(), "memory_bytes")
        parts = [f"{count(tokens)} tok/s"] if tokens else []
        parts += [mfu] if mfu else []
        parts += [f"{seconds(step_s)} per step"] if step_s else []
        return [*parts, *([f"memory {size(memory)}"] if memory else [])]

    def _counters(self) -> list[str]:
        step = self.step()
        return [f"{name} {step[key]}" for key, name in COUNTERS.items() if step.get(key)]


def log_lines(path: Path) -> list[str]:
    """Return the last lines of a log, with the time of day and no date; none when it cannot be read."""
    try:
        with open_binary(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL))
            text = file.read().decode("utf8", errors="replace")
    except OSError:
        return []
    lines = (STAMP.sub(r"\1 ", line).rstrip() for line in text.splitlines()[1 if len(text) >= LOG_TAIL else 0 :])
    lines = (line for line in lines if not MEGATRON.match(line))  # the log has each step in two forms
    return ["".join(letter if letter.isprintable() else " " for letter in line) for line in lines if line]
