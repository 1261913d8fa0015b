"""The line of one step in the log."""

from __future__ import annotations

from megads.monitor.throughput import Speed
from megads.text.units import count, duration, seconds

WAITING = 0.05  # of a step's time: less is not worth a word


def step_line(
    iteration: int,
    train_iters: int,
    loss: float,
    lr: float,
    grad_norm: float,
    speed: Speed,
    eta_s: float,
    *,
    batch: int = 0,
    scale: float = 1.0,
    waited: float = 0.0,
    skipped: str = "",
) -> str:
    """Return the log line of one step; its columns are as wide in every step.

    ``batch``: samples of the step, shown unless 0. ``waited``: share of the step spent waiting
    for data, shown from :data:`WAITING` on.
    ``skipped``: why the weights stayed as they were.
    """
    width = len(str(train_iters))
    mfu = f" | mfu {speed.mfu:.1%}" if speed.mfu is not None else ""
    shown_batch = f" | batch {batch}" if batch else ""
    shown_scale = f" | scale {scale:g}" if scale != 1 else ""
    shown_wait = f" | data stall {waited:.0%}" if waited > WAITING else ""
    shown_skip = f" | SKIPPED, {skipped}" if skipped else ""
    return (
        f"step {iteration:{width}d}/{train_iters} | loss {loss:7.4f} | lr {lr:.2e} | grad norm {grad_norm:7.3f}"
        f"{shown_batch}{shown_scale}"
        f" | {count(speed.tokens_per_s):>5} tok/s | {seconds(speed.step_time_s):>6}{mfu}{shown_wait}"
        f" | ETA {duration(eta_s):>6}"
        f"{shown_skip}"
    )
