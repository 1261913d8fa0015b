"""Closed formulas of the time in which a pipeline waits. ``megads.config.pipeline.clock`` shows the same."""

from __future__ import annotations

from megads.config.pipeline.clock import Costs, Number


def idle_time(schedule: str, stages: int, chunks: int, micro_batches: int, costs: Costs | None = None) -> Number:
    """Return the time in which each stage waits in one step; all chunks take the same time, messages take none.

    With ``F``, ``B``, ``W`` of a chunk, ``p`` stages, ``v`` chunks and ``m`` micro-batches:

    * 1f1b: ``(p - 1) (F + B + W)``
    * interleaved: the same, and ``F + B + W`` of a chunk are a ``v``-th of a stage's; with ``m < p`` in addition
      ``(p - m) (v - 1) (F + B + W)``
    * zb-h1: ``(p - 1) (F + B - min(F, B, W))``, in arXiv 2401.10241 for ``W`` the smallest; with ``m < p`` in addition
      ``(p - m) min(F, B, W)``
    """
    costs = costs or Costs()
    forward, backward, weight = costs.forward, costs.backward, costs.weight
    if schedule == "zb-h1":
        least = min(forward, backward, weight)
        return (stages - 1) * (forward + backward) - (min(micro_batches, stages) - 1) * least
    missing = max(0, stages - micro_batches) * (chunks - 1)
    return (stages - 1 + missing) * (forward + backward + weight)


def idle_share(schedule: str, stages: int, chunks: int, micro_batches: int, costs: Costs | None = None) -> Number:
    """Return the share of a step in which each stage waits, see :func:`idle_time`."""
    costs = costs or Costs()
    waits = idle_time(schedule, stages, chunks, micro_batches, costs)
    computes = chunks * micro_batches * (costs.forward + costs.backward + costs.weight)
    return waits / (waits + computes)
