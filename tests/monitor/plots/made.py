"""Metrics files as runs leave them."""

import json
import math
from pathlib import Path

from megads.config.run_folder import save_config
from megads.config.sources.resolve import resolve


def step_row(iteration, steps, **given):
    """Return the row of one step; ``given`` replaces or adds values."""
    row = {
        "iteration": iteration,
        "consumed_samples": iteration * 8,
        "consumed_tokens": iteration * 8 * 2048,
        "lm_loss": 2 + 8 * math.exp(-8 * iteration / steps) + 0.1 * (iteration * 7 % 11) / 11,
        "learning_rate": 3e-4 * min(1.0, 20 * iteration / steps),
        "grad_norm": 0.5 + (iteration * 5 % 13) / 13,
        "loss_scale": 1.0,
        "skipped_iterations": 0,
        "nan_iterations": 0,
        "rejected_iterations": 0,
        "rollbacks": 0,
        "global_batch_size": 8,
        "step_time_s": 0.05 + 0.001 * (iteration % 7),
        "tokens_per_s": 16384 / (0.05 + 0.001 * (iteration % 7)),
        "tflops_per_device": 120.5,
        "mfu": 0.38 + 0.001 * (iteration % 9),
        "data_wait_share": 0.02,
        "memory_bytes": 41_234_567_890,
    }
    return {**row, **given}


def rows_of(steps, *, every=50, first=1, **given):
    """Return the rows of a run: steps, and a validation of two corpora after ``every`` of them."""
    rows = []
    for iteration in range(first, first + steps):
        rows.append(step_row(iteration, steps, **given))
        if iteration % every == 0:
            loss = rows[-1]["lm_loss"] or 2.0
            corpora = {"valid_loss/books": loss + 0.3, "valid_loss/web": loss - 0.1}
            rows.append({"iteration": iteration, "valid_loss": loss + 0.1, **corpora, "valid_ppl": math.exp(loss)})
    return rows


def write_rows(folder, rows) -> Path:
    """Write a run's metrics file and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_run(folder, rows, **settings):
    """Make a run folder with settings (NAME=value, as in the environment) and metrics."""
    resolved = resolve("tiny", env=settings, machine="cpu", root=Path(__file__).parents[3])
    path = write_rows(folder, rows)
    save_config(resolved.run, resolved.origins, folder / "config.yaml")
    return path
