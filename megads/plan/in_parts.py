"""What a run whose rows are long keeps in parts, computes again or keeps on the host, planned by its memory.

``LONG_CONTEXT=1``. Parts come in the order of what they cost: the loss in chunks costs nothing, layers that are
computed again a third of a step, the host's memory the way there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from megads.config.engine_choice import choose
from megads.config.rules.advice import Change, put
from megads.config.schema import RunConfig
from megads.config.setting import Origin
from megads.config.sources.resolve import Resolved, rank_of
from megads.families.decoder import padded_vocab_size
from megads.plan.memory import GIB, estimate
from megads.plan.parts.activations import rank_tokens

CHUNK, TILES, ON_HOST = "recompute.loss_chunk", "recompute.mlp_tiles", "recompute.cpu_checkpointing"
KIND, OPTIMIZER, ZERO = "recompute.granularity", "deepspeed.offload_optimizer", "parallel.zero_stage"
ENGINE = "engine.kind"

TOKENS = 4096
"""Of a chunk or a tile, at most: products of so many rows are as fast as any."""

CHUNK_BYTES = 1 << 30
"""Of the logits of a chunk in both their forms, about."""

FEWEST = 512
"""Tokens of a chunk: the weight's gradient is read and written once for each."""

BY_USER = rank_of(Origin("env"))


def plan_long_context(resolved: Resolved, world_size: int, gib: float) -> Change:
    """Return the settings that LONG_CONTEXT=1 adds to a derived run; none without it, or where the run fits.

    What the user has set stays.

    Args:
        gib: memory of one rank's device; 0: not known, and all that a rank's own device can do is done.
    """
    run = resolved.run
    if not run.recompute.long_context:
        return {}
    changes: Change = {}
    for step in _steps(run):
        if gib and changes and _needed(run, changes, world_size) <= gib * GIB:
            break
        if not gib and OPTIMIZER in step:
            break
        if ENGINE in step and not _engine_helps(run, changes, world_size):
            continue
        if ON_HOST in step and {KIND: run.recompute.granularity, **changes}[KIND] != "full":
            continue  # the user does not want layers computed again, and nothing else goes there
        free = {name: value for name, value in step.items() if rank_of(resolved.origins[name]) < BY_USER}
        if len(free) == len(step):
            changes = {**changes, **step}
    return changes


def with_plan(resolved: Resolved, changes: Change) -> Resolved:
    """Return ``resolved`` with what :func:`plan_long_context` adds."""
    if not changes:
        return resolved
    origin = Origin("derived", "LONG_CONTEXT")
    return replace(
        resolved, run=put(resolved.run, changes), origins={**resolved.origins, **dict.fromkeys(changes, origin)}
    )


def plan_line(run: RunConfig, world_size: int, gib: float) -> str:
    """Return what LONG_CONTEXT=1 has planned, and what a rank then needs."""
    needed = estimate(run, world_size).total / GIB
    of = f" of {gib:.3g}" if gib else ""
    planned = [*parts(run)] or ["nothing in parts"]
    if run.engine.kind == "deepspeed":
        planned.append("ENGINE=deepspeed")
    return f"LONG_CONTEXT: {', '.join(planned)}: {needed:.1f}{of} GiB per rank (estimated)"


def parts(run: RunConfig) -> Iterator[str]:
    """Yield in words what is kept in parts, computed again or kept on the host."""
    given = run.recompute
    if given.loss_chunk:
        yield f"loss in chunks of {given.loss_chunk}"
    if given.mlp_tiles > 1:
        yield f"MLP in {given.mlp_tiles} tiles"
    if given.granularity == "full":
        yield "layers recomputed"
    if given.cpu_checkpointing and run.machine != "cpu":
        yield "checkpoints on the host"
    if run.deepspeed.offload_optimizer == "cpu" and run.machine != "cpu":
        yield "optimizer on the host"


def _engine_helps(run: RunConfig, changes: Change, world_size: int) -> bool:
    """Return whether the native engine runs, and DeepSpeed would need less: with the optimizer on the host only."""
    if choose(put(run, changes), world_size).kind != "native":
        return False
    return _needed(run, {**changes, ENGINE: "deepspeed"}, world_size) < _needed(run, changes, world_size)


def _needed(run: RunConfig, changes: Change, world_size: int) -> int:
    return estimate(put(run, changes), world_size).total


def _steps(run: RunConfig) -> Iterator[Change]:
    given, grid, moves = run.recompute, run.parallel, run.machine != "cpu"
    if not given.loss_chunk and not run.model.num_classes:
        size = 4 + (4 if run.train.dtype == "fp32" else 2)
        fitting = CHUNK_BYTES * grid.tensor // (padded_vocab_size(run.model) * size)
        yield {CHUNK: min(TOKENS, max(FEWEST, fitting // 256 * 256))}
    if given.granularity == "none":
        yield {KIND: "full"}
    tiles = -(-rank_tokens(run) // TOKENS)
    if given.mlp_tiles == 1 and tiles > 1:
        yield {TILES: tiles}
    if not given.cpu_checkpointing and moves:
        yield {ON_HOST: True}
    if run.deepspeed.offload_optimizer == "none" and grid.zero_stage and moves:
        at_least: Change = {ZERO: 2} if grid.zero_stage < 2 and grid.pipeline == 1 else {}
        yield {OPTIMIZER: "cpu", **at_least}
        if run.engine.kind == "auto" and grid.pipeline == 1:
            # One of its ranks that shares with nobody sums gradients on the device; DeepSpeed's go to the host.
            yield {ENGINE: "deepspeed"}
