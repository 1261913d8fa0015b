"""Whether a run can go on from the checkpoints in its folder; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megads.checkpoint.layout import find_latest
from megads.config.batches import BatchSchedule
from megads.config.schema import RunConfig
from megads.errors import CheckpointError

SHAPE_SETTINGS = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "ffn_hidden_size",
    "max_positions",
    "vocab_size",
    "vocab_multiple",
    "normalization",
    "activation",
    "position_embedding",
    "bias",
    "tied_embeddings",
    "norm_epsilon",
    "rope_theta",
)
"""What a checkpoint and a run must agree on for the weights to mean the same."""

FREE = {
    *("force", "exit_interval", "eval_at_start", "max_skipped"),
    *("micro_batch", "grad_acc_steps", "train_samples", "train_tokens"),
    *("cache_dir", "num_workers"),
}
"""Settings of ``train`` and ``data`` that change no number of a run, or follow from others."""


def checkpoint_folder(run: RunConfig, run_dir: Path) -> Path:
    """Return the folder of the run's checkpoints: ``CKPT_DIR``, else ``<run>/checkpoints``."""
    return Path(run.checkpoint.dir) if run.checkpoint.dir else run_dir / "checkpoints"


def shape_of(run: RunConfig) -> dict[str, Any]:
    """Return the settings that decide the shape and the meaning of the weights."""
    model = run.model.model_dump()
    return {key: model[key] for key in SHAPE_SETTINGS}


def check_resume(run: RunConfig, run_dir: Path) -> None:
    """Refuse a run whose folder holds checkpoints that it can not go on from.

    Args:
        run: the derived settings.
        run_dir: the run folder.

    Raises:
        CheckpointError: every checkpoint is damaged, or the newest is of another model or layout.
    """
    found = find_latest(checkpoint_folder(run, run_dir))
    if found is not None:
        check_model(found.path, found.manifest, shape_of(run))
        check_layout(found.path, found.manifest, run.parallel.tensor)


def check_model(path: Path, manifest: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another model, naming the first difference.

    Raises:
        CheckpointError: a setting that decides the shape of the weights differs.
    """
    for key, wanted in model.items():
        stored = manifest.get("model", {}).get(key)
        if stored != wanted:
            raise CheckpointError(
                f"{path}: the checkpoint's model has {key}={stored}, this run asks for {wanted}; "
                "use the same model, or another RUN_NAME or RUN_DIR for a new run"
            )


def check_layout(path: Path, manifest: Mapping[str, Any], tensor: int) -> None:
    """Refuse a checkpoint that was cut for another number of tensor-parallel ranks.

    Raises:
        CheckpointError: the degrees differ.
    """
    written = manifest.get("layout", {}).get("tensor")
    if written != tensor:
        raise CheckpointError(
            f"{path}: written with TP={written}, this run has TP={tensor}; "
            f"resume with TP={written}, or use another RUN_NAME or RUN_DIR for a new run"
        )


def changes(before: Mapping[str, Any], run: RunConfig) -> list[str]:
    """Return a line for every setting of the science that differs from the checkpoint's.

    Where a run lies, how it is laid out and how it is started may change freely.

    Args:
        before: the settings in the checkpoint's manifest, section by section.
        run: the derived settings of this run.
    """
    lines = []
    for section in ("model", "train", "optim", "data"):
        for key, now in getattr(run, section).model_dump().items():
            # A setting that is newer than the checkpoint had its default then.
            old = before.get(section, {}).get(key, type(getattr(run, section)).model_fields[key].default)
            if old != now and key not in FREE:
                lines.append(f"had {section}.{key}={old}, this run has {now}")
    planned = BatchSchedule.of_settings(before["train"]).samples_after(before["train"]["train_iters"])
    plans = BatchSchedule.of(run).samples_after(run.train.train_iters)
    if planned != plans:
        lines.append(
            f"planned {planned} samples, this run plans {plans}: they come in another order now, "
            "so that samples seen before may be seen again"
        )
    return lines
