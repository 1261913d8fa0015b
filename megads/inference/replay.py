"""Compares what a model in files computes with what its run computed when it saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import megads
from megads.checkpoint.format.manifest import Manifest
from megads.checkpoint.function.compare import check_conventions
from megads.checkpoint.function.record import KEY, TOKENS, Batch, Record, record_of
from megads.checkpoint.function.replay import check_losses
from megads.config.schema import RunConfig
from megads.errors import CheckpointError
from megads.families.conventions import BY_KEY, changes_between, conventions_of
from megads.families.table import FAMILIES
from megads.inference.load import CheckpointWeights, Weights, open_weights
from megads.inference.runner import Runner
from megads.inference.streamed import ALONE, stream_model

DRAWN_ROWS = 4
CURE = "set REPLAY_ROWS=0 to use the model as it is"


def _readable(record: Record | None, vocab_size: int) -> tuple[Record | None, str]:
    """Return the record with the rows that a model of text computes alone, or why there is none."""
    if record is None:
        return None, "no batch is stored (of an older version, or imported)"
    batch = record.batch
    if batch is None or not record.is_replayable:
        return None, "no batch with a finite loss is stored"
    if batch.kind != "tokens" or min(map(min, batch.rows)) < 0 or max(map(max, batch.rows)) >= vocab_size:
        return None, "the stored samples are of a kind that only its run reads"
    # Where documents start over, the rows of one document are those that do not end one.
    kept = [i for i, row in enumerate(batch.rows) if batch.end is None or batch.end not in row[:-1]]
    if not kept:
        return None, "documents start over in every stored row"
    rows = tuple(batch.rows[i] for i in kept)
    batch = type(batch)(batch.kind, rows)
    losses = tuple(record.losses[i] for i in kept)
    return Record(record.conventions, batch, losses, record.products, record.made_with), ""


@torch.inference_mode()
def losses_of(runner: Runner, rows: Sequence[Sequence[int]]) -> list[float]:
    """Return the loss of every row, in nats per token, the same on every rank of the model. Collective."""
    hidden = runner.run([list(row[:-1]) for row in rows])
    found = torch.zeros(len(rows), dtype=torch.float64)
    if runner.is_last_stage:
        for place, row in enumerate(rows):
            labels = torch.tensor(row[1:], device=hidden.device).unsqueeze(1)
            logits = runner.logits(hidden[place, : len(row) - 1])
            found[place] = -float(logits.log_softmax(dim=-1).gather(1, labels).double().mean())
    losses: list[float] = runner.share(found).tolist()
    return losses


def check_loaded(weights: CheckpointWeights, runner: Runner, dtype: str) -> str:
    """Compare a loaded model with its checkpoint; return a line about it. Collective.

    Raises:
        CheckpointError: on every rank: it computes another function.
    """
    path, manifest, model = weights.path, weights.manifest, weights.model
    run = RunConfig().model_copy(update={"model": model})
    check_conventions(path, manifest, run, continues=False)
    record, why_not = _readable(record_of(manifest), runner.vocab_size)
    if record is None or record.batch is None:
        return f"not replayed: {why_not}"
    losses = losses_of(runner, record.batch.rows)
    made = {"megads": megads.__version__, "torch": str(torch.__version__), "device": runner.device.type}
    return check_losses(path, record, losses, dtype, model.num_layers, made, cure=CURE)


def describe_files(place: Path) -> dict[str, Any]:
    """Return what a checkpoint that is imported from ``place`` says of its function: entries of ``about``.

    A model of text gets rows of drawn tokens with the losses of its weights as they are there, so that every later
    load of the checkpoint is compared with them; of other models only the conventions are known.
    """
    weights = open_weights(place)
    try:
        model = weights.model
        found = conventions_of(RunConfig().model_copy(update={"model": model}))
        record = Record({key: value for key, value in found.items() if not BY_KEY[key].is_of_run})
        if FAMILIES[model.family].samples == "causal" and not model.num_classes:
            length = min(TOKENS, model.max_positions if model.position_embedding == "learned" else TOKENS)
            drawn = np.random.default_rng(0).integers(0, model.vocab_size, (DRAWN_ROWS, length + 1))
            rows = tuple(tuple(map(int, row)) for row in drawn)
            runner = Runner(stream_model(weights), ALONE, context=TOKENS, num_slots=0)
            record = Record(record.conventions, Batch("tokens", rows)).measured(losses_of(runner, rows), "fp32")
        return {KEY: record.dump()}
    finally:
        weights.close()


def check_files(source: Path, manifest: Manifest, dtype: str, place: Path) -> str:
    """Compare what was exported to ``place`` with the checkpoint ``source``: read back, layer by layer, on the CPU.

    Args:
        source: the checkpoint.
        manifest: of it.
        dtype: of the exported weights, to which they were rounded.
        place: a folder of another program.

    Returns:
        A line about it.

    Raises:
        CheckpointError: what is there computes another function.
    """
    if manifest.model.get("num_classes"):
        return "not replayed: a classifier writes no text"
    weights = open_weights(place)
    try:
        return _check(source, record_of(manifest), weights, dtype)
    finally:
        weights.close()


def _check(source: Path, stored: Record | None, weights: Weights, dtype: str) -> str:
    model = weights.model
    if stored is not None:
        now = conventions_of(RunConfig().model_copy(update={"model": model}))
        changed = [
            each for each in changes_between(stored.conventions, now) if not BY_KEY[each.convention.key].is_of_run
        ]
        if changed:
            each = changed[0]
            raise CheckpointError(
                f"{source}: the exported files would compute another function: {each.convention.text} "
                f"({each.convention.key}) is {each.was}, the files say {each.now}; nothing was written; {CURE}"
            )
    record, why_not = _readable(stored, model.vocab_size)
    if record is None or record.batch is None:
        return f"not replayed: {why_not}"
    if model.position_embedding == "learned" and model.max_positions < len(record.batch.rows[0]) - 1:
        return "not replayed: the stored rows are longer than its table of positions"
    runner = Runner(stream_model(weights), ALONE, context=TOKENS, num_slots=0)
    losses = losses_of(runner, record.batch.rows)
    return check_losses(source, record, losses, dtype, model.num_layers, {}, cure=f"{CURE}; nothing was written")
