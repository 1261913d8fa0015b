"""The fingerprint of a run's function: made when it saves, compared when it resumes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import megads
from megads.checkpoint.format.folders import CheckpointRef
from megads.checkpoint.function.record import KEY, MOST_NUMBERS, TOKENS, Batch, Kind, Record, record_of
from megads.checkpoint.function.replay import check_losses
from megads.checkpoint.resume.compatibility import engine_of
from megads.checkpoint.resume.start_point import RestorePlan, check_function
from megads.comm.messages import broadcast_value
from megads.config.rules.allowed_changes import REPLAY, allowed
from megads.config.schema import RunConfig
from megads.data.tokenizers.build import identity, spec_of
from megads.engine.base import Engine
from megads.errors import MegadsError
from megads.evaluate.live import LiveModel, score_live
from megads.evaluate.windows import Window
from megads.families.conventions import conventions_of
from megads.families.table import FAMILIES
from megads.monitor.log import LOG

if TYPE_CHECKING:
    from megads.train.setup import Training


def kind_of(run: RunConfig) -> Kind:
    """Return what rows a run stores: text where it predicts a text from its beginning, else samples of its own form."""
    is_text = FAMILIES[run.model.family].samples == "causal" and not run.model.num_classes
    return "tokens" if is_text else "samples"


def describe(training: Training) -> dict[str, Any]:
    """Return what a checkpoint of ``training`` says of its function: entries of ``about``. Collective."""
    run = training.run
    record = training.function or Record({})
    if not record.conventions:
        record = replace(record, conventions=conventions_of(run, _tokenizer(training)))
    if run.checkpoint.replay_rows and record.batch is None:
        record = replace(record, batch=_draw(training))
    training.function = record
    if record.batch is not None and run.checkpoint.replay_rows:
        record = record.measured(losses_of(training, record.batch), training.vendor.product_dtype(run.train.dtype))
    return {KEY: record.dump()}


def _tokenizer(training: Training) -> str:
    """Return the digest of the tokenizer on rank 0, whose manifest is written; empty: it has no content."""
    if training.groups.rank or training.run.data.tokenizer_type == "NullTokenizer":
        return ""
    try:
        return identity(spec_of(training.run))
    except MegadsError:
        return ""  # its files are gone since the data was made


def _draw(training: Training) -> Batch | None:
    """Return the first samples of the run, or what of them fits. Collective."""
    batch: Batch | None = None
    if training.groups.rank == 0:
        try:
            batch = _read(training)
        except (MegadsError, OSError) as error:
            LOG.warning("checkpoints have no batch to compare on resume: %s", error)
    found: Batch | None = broadcast_value(batch)
    return found


def _read(training: Training) -> Batch | None:
    run, samples, kind = training.run, training.splits["train"], kind_of(training.run)
    if samples is None or not len(samples):
        return None
    rows = [np.asarray(samples[i]) for i in range(min(run.checkpoint.replay_rows, len(samples)))]
    if kind == "tokens":
        # A row of chats has its tokens first, one less, and then their labels.
        length = run.model.seq_length + (0 if run.finetune.is_chat else 1)
        rows = [row[: min(length, TOKENS + 1)] for row in rows]
    rows = rows[: MOST_NUMBERS // len(rows[0])]
    end = getattr(getattr(training.engine, "split", None), "end", None)
    return Batch(kind, tuple(tuple(map(int, row)) for row in rows), end) if rows else None


def losses_of(training: Training, batch: Batch) -> list[float]:
    """Return the loss of every row, in nats per token. Collective."""
    run, groups = training.run, training.groups
    if batch.kind == "samples":
        return _sample_losses(training.engine, batch, run.train.micro_batch, groups.data_rank, groups.data_size)
    model = LiveModel(
        training.engine,
        groups,
        training.device,
        run.train.micro_batch,
        run.model.seq_length,
        run.parallel.scatter_norms,
        run.model.vocab_size,
        restarts=batch.end is not None,
    )
    scores = score_live(model, [Window(row, len(row) - 1) for row in batch.rows])
    assert scores is not None
    return [-total / (len(row) - 1) for (total, _), row in zip(scores, batch.rows, strict=True)]


def _sample_losses(engine: Engine, batch: Batch, micro_batch: int, data_rank: int, data_size: int) -> list[float]:
    """Return the mean of the first term of the loss of each row; rows repeat until every rank has as many."""
    count, block = len(batch.rows), micro_batch * data_size
    rows = torch.tensor(batch.rows, dtype=torch.int64)
    firsts = range(data_rank * micro_batch, -(-count // block) * block, block)
    found = engine.eval_losses([rows[[(first + i) % count for i in range(micro_batch)]] for first in firsts])
    return [total / max(1.0, tokens) for total, tokens in found[:count, :2].double().tolist()]


def compare(training: Training, found: CheckpointRef, plan: RestorePlan, *, is_own: bool) -> None:
    """Check that the run computes what the checkpoint's did: by name, and by the loss of its stored batch. Collective.

    Raises:
        CheckpointError: on every rank: it does not, and nobody asked for a change.
    """
    run = training.run
    notes = check_function(run, found, plan)
    record = record_of(found.manifest)
    training.function = None
    if record is not None and is_own:
        training.function = replace(record, conventions={}, losses=())
    problem = _unusable(training, record, plan)
    if not problem and record is not None and record.batch is not None:
        losses = losses_of(training, record.batch)
        products = training.vendor.product_dtype(run.train.dtype)
        is_asked = bool(notes) or REPLAY in allowed(run) or run.train.evaluate_only
        made_with = code_and_device(training)
        layers = run.model.num_layers
        notes.append(check_losses(found.path, record, losses, products, layers, made_with, allows=is_asked))
    elif record is not None or plan.progress:
        notes.append(f"not compared: {problem}")
    if training.groups.rank == 0:
        for line in notes:
            LOG.info("function %s", line)


def code_and_device(training: Training) -> dict[str, str]:
    """Return which code computes the run, and on which kind of device."""
    found = {"torch": str(torch.__version__), "deepspeed": "unknown"}
    with suppress(PackageNotFoundError):  # installed by a path; the engine runs all the same
        found["deepspeed"] = version("deepspeed")
    more = {"megads": megads.__version__, "device": training.device.type, "engine": engine_of(training.run)}
    return {**found, **more}


def _unusable(training: Training, record: Record | None, plan: RestorePlan) -> str:
    """Return why the stored batch says nothing about this run; empty: it does."""
    run = training.run
    if record is None:
        return "the checkpoint has no stored batch (of an older version, or imported)"
    if not run.checkpoint.replay_rows:
        return "REPLAY_ROWS=0"
    batch = record.batch
    if batch is None or not record.is_replayable:
        return "the checkpoint has no stored batch with a finite loss"
    if not plan.has_retriever or (run.model.num_classes and not plan.progress):
        return "parts of the model are new"
    if batch.kind != kind_of(run):
        return "its stored batch is of another kind of samples"
    width = training.splits["train"].width if training.splits.get("train") is not None else 0
    if batch.kind == "samples" and len(batch.rows[0]) != width:
        return f"its stored samples have {len(batch.rows[0])} numbers, those of this run {width}"
    if batch.kind == "tokens" and len(batch.rows[0]) > run.model.seq_length + 1:
        return f"its stored rows are longer than SEQ={run.model.seq_length}"
    return ""
