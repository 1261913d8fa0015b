"""Rows as a run writes them."""

from __future__ import annotations

from typing import Any


def step(iteration: int, batch: int = 8, **more: Any) -> dict[str, Any]:
    return {
        "iteration": iteration,
        "consumed_samples": iteration * batch,
        "consumed_tokens": iteration * batch * 32,
        "lm_loss": 6.0 - iteration / 7,
        "learning_rate": 1e-3 / iteration,
        "weight_decay": 0.1,
        "grad_norm": 1.5 + iteration / 3,
        "loss_scale": 1.0,
        "global_batch_size": batch,
        "step_time_s": 0.5,
        "tokens_per_s": 512.0,
        "mfu": None,
        "time/forward_s": 0.1,
        "memory_bytes": 2**30,
        **more,
    }


def validation(iteration: int, batch: int = 8) -> dict[str, Any]:
    loss = 6.1 - iteration / 7
    row = {"iteration": iteration, "valid_loss": loss, "valid_loss/books": loss + 1, "valid_ppl": 2.7**loss}
    return {**row, "consumed_samples": iteration * batch}


def save(iteration: int) -> dict[str, Any]:
    return {"iteration": iteration, "save_s": 0.25, "save_pause_s": 0.1}


def run_of(last: int, first: int = 1, every: int = 5) -> list[dict[str, Any]]:
    """Return the rows of the steps from ``first`` to ``last``, with a validation and a save every ``every`` steps."""
    rows = []
    for iteration in range(first, last + 1):
        rows.append(step(iteration))
        if iteration % every == 0:
            rows += [validation(iteration), save(iteration)]
    return rows
