"""A run is a chain of jobs: which link a start is, and what of hosts, ranks and layout is another than before.

The trajectory does not depend on them (``docs/campaigns.md``), so a change is news and no warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megads.monitor.run_state.attempts import Attempt, read_attempts
from megads.text.plural import plural


def number_of_links(attempts: Sequence[Attempt]) -> int:
    """Return how many commands started the run; restarts within a job are of its link."""
    return sum(not each.attempt for each in attempts)


def link_line(earlier: Sequence[Attempt], now: Attempt) -> str:
    """Return ``3: 8 ranks on 2 hosts, was 4 on 1; DP 4 -> 8; accumulation 2 -> 1``; empty for the first link."""
    if not earlier:
        return ""
    number = number_of_links(earlier) + (not now.attempt)
    ranks = f"{number}: {plural(now.num_ranks, 'rank')} on {plural(len(now.hosts), 'host')}"
    changed = changes_between(earlier[-1], now)
    return (
        "; ".join([f"{ranks}, {changed[0]}" if changed[0] else ranks, *changed[1:]])
        if changed
        else f"{ranks}, as before"
    )


def changes_between(before: Attempt, now: Attempt) -> list[str]:
    """Return what differs: first the ranks and hosts (may be empty), then each axis and the accumulation."""
    size = (before.num_ranks, len(before.hosts)) != (now.num_ranks, len(now.hosts))
    was, axes = _axes(before.layout), _axes(now.layout)
    more = [f"{name} {was[name]} -> {axes[name]}" for name in axes if name in was and was[name] != axes[name]]
    if before.grad_acc_steps != now.grad_acc_steps:
        more.append(f"accumulation {before.grad_acc_steps} -> {now.grad_acc_steps}")
    if not size and not more:
        return []
    return [f"was {before.num_ranks} on {len(before.hosts)}" if size else "", *more]


def link_row(run_dir: Path, iteration: int) -> dict[str, Any] | None:
    """Return a row of ``metrics.jsonl`` about a start on other ranks than before; None without a change.

    Args:
        iteration: that the run resumes from; the start itself is the last of ``attempts.jsonl``.
    """
    attempts = read_attempts(run_dir)
    if len(attempts) < 2 or not changes_between(attempts[-2], attempts[-1]):
        return None
    now = attempts[-1]
    return {
        "iteration": iteration,
        "link": number_of_links(attempts),
        "num_ranks": now.num_ranks,
        "num_hosts": len(now.hosts),
        "layout": now.layout,
        "grad_acc_steps": now.grad_acc_steps,
    }


def _axes(layout: str) -> dict[str, str]:
    """Return the degrees of a layout such as ``TP 2 PP 1`` by name."""
    words = layout.split()
    return dict(zip(words[::2], words[1::2], strict=False))
