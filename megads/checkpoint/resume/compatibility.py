"""Whether a run can use a checkpoint, and what differs; without torch."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megads.checkpoint.format.manifest import Manifest
from megads.config.data_stages.changes import changes as stage_changes
from megads.config.data_stages.table import StageTable, parse_table
from megads.config.engine_choice import choose
from megads.config.rules.allowed_changes import allow_text, allowed
from megads.config.schedule.batches import BatchSchedule, planned_samples, samples_at_end
from megads.config.schedule.rates import Schedule
from megads.config.schema import ModelConfig, RunConfig
from megads.config.setting import Section
from megads.errors import CheckpointError
from megads.text.plural import plural

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
    "norm_position",
    "qk_norm",
    "norm_epsilon",
    "rope_theta",
    "rope_scaling",
    "rope_scaling_factor",
    "rope_low_freq_factor",
    "rope_high_freq_factor",
    "rope_original_positions",
    "relative_buckets",
    "relative_distance",
    "decoder_layers",
    "token_types",
    "binary_head",
    "num_classes",
    "retro_encoder_layers",
    "retro_chunk_length",
    "retro_retrieved_chunks",
    "lora_rank",
    "lora_alpha",
    "lora_targets",
)
"""What decides the shape and the meaning of the weights."""

LORA = ("lora_rank", "lora_alpha", "lora_targets")
"""Those of :data:`SHAPE_SETTINGS` that only a model with adapters has."""

OTHER_FAMILIES = {"bert": "an encoder, bert", "retro": "retro, which looks at neighbours"}
"""Families whose weights mean nothing to others of the same settings."""

FREE = {
    *("force", "exit_interval", "exit_duration_min", "eval_at_start", "evaluate_only", "max_skipped"),
    *("micro_batch", "grad_acc_steps", "train_samples", "train_tokens", "samples_offset"),
    *("planned_iters", "planned_samples", "planned_tokens"),
    *("cache_dir", "num_workers"),
    *("stages", "stage_table"),
}
"""Settings of ``train`` and ``data`` that change no result of a run, or follow from others."""

SEEDS = ("seed", "weights_seed", "data_seed", "dropout_seed")
"""Settings of ``train``, each with a message of its own when it changes."""

NAMED = 3
"""Differences that a message names; a checkpoint of another model has many."""

HF = "hf"
"""What was imported keeps under this name of ``about`` what only an export needs."""


def checkpoint_folder(run: RunConfig, run_dir: Path) -> Path:
    """Return the folder of the run's checkpoints: ``CKPT_DIR``, else ``<run>/checkpoints``.

    A sweep of the learning rate has none, whatever ``CKPT_DIR`` says: its folder stays empty.
    """
    is_elsewhere = run.checkpoint.dir and not run.lr_finder.enabled
    return Path(run.checkpoint.dir) if is_elsewhere else run_dir / "checkpoints"


def shape_of(run: RunConfig | ModelConfig) -> dict[str, Any]:
    """Return the settings that decide the shape and the meaning of the weights; ``run`` is derived.

    Of the family whether it is an encoder, whose tokens attend in both directions, or looks at neighbours.
    """
    model = (run.model if isinstance(run, RunConfig) else run).model_dump()
    named = {"family": model["family"]} if model["family"] in OTHER_FAMILIES else {}
    without = () if model["lora_rank"] else LORA
    return {**named, **{key: model[key] for key in SHAPE_SETTINGS if key not in without}}


def meaningful(model: Mapping[str, Any]) -> list[str]:
    """Return which of :data:`SHAPE_SETTINGS` two models must agree on to take each other's weights.

    Padding rows of the vocabulary may be more or fewer, and a setting of a part that the
    model does not have says nothing.
    """
    kind, scaling = model.get("position_embedding"), model.get("rope_scaling", "none")
    without = {"vocab_multiple"}
    if kind != "learned":
        without |= {"max_positions"}
    if kind != "relative":
        without |= {"relative_buckets", "relative_distance"}
    if kind != "rope":
        without |= {key for key in SHAPE_SETTINGS if key.startswith("rope_")}
    if scaling == "none":
        without |= {"rope_scaling_factor"}
    if scaling != "llama3":
        without |= {"rope_low_freq_factor", "rope_high_freq_factor", "rope_original_positions"}
    if model.get("family") != "retro":
        without |= {key for key in SHAPE_SETTINGS if key.startswith("retro_")}
    if not model.get("token_types"):
        without |= {"binary_head"}
    if not model.get("lora_rank"):
        without |= {"lora_alpha", "lora_targets"}
    return [key for key in SHAPE_SETTINGS if key not in without]


def _starts_new(run: RunConfig, is_own: bool) -> str:
    """Return what starts a run without the checkpoint: its own is found by its folder, another's by LOAD."""
    if run.checkpoint.load and not is_own:
        return "leaving LOAD unset"
    folder = "another CKPT_DIR" if run.checkpoint.dir else "another RUN_NAME or RUN_DIR"
    return f"{folder} with LOAD unset" if run.checkpoint.load else folder


def check_model(path: Path, manifest: Manifest, run: RunConfig, *, is_own: bool = False) -> None:
    """Reject a checkpoint of another model, naming the first differences; ``LOAD`` names it unless it ``is_own``.

    Raises:
        CheckpointError: a setting that decides the shape or the meaning of the weights differs,
            or the run's samples are longer than the model can read.
    """
    wanted, fields = {"lora_rank": 0, **shape_of(run)}, ModelConfig.model_fields
    _check_adapters(path, manifest, run)
    # A setting that is newer than the checkpoint had its default then.
    stored = {key: manifest.model.get(key, fields[key].default) for key in SHAPE_SETTINGS}
    kinds = [each.get("family", "gpt") for each in (manifest.model, wanted)]
    has_new = not is_own and lacks_retriever(run, manifest)
    if kinds[0] != kinds[1] and not has_new:
        had, asks = (OTHER_FAMILIES.get(kind, "no encoder") for kind in kinds)
        raise CheckpointError(
            f"{path}: the checkpoint's model is {had}, this run's is {asks}; set MODEL_FAMILY, or start with "
            f"{_starts_new(run, is_own)}"
        )
    # The head of a task is new.
    compared = [key for key in meaningful(wanted) if is_own or key != "num_classes" or not wanted[key]]
    # Adapters of a base are new.
    compared = [key for key in compared if key not in LORA or is_own or stored["lora_rank"]]
    if has_new:
        compared = [key for key in compared if not key.startswith("retro_")]
    asked = allowed(run)
    differ = [key for key in compared if stored[key] != wanted[key] and key not in asked]
    if differ:
        had = " and ".join(f"{key}={stored[key]}" for key in differ[:NAMED])
        asks = " and ".join(str(wanted[key]) for key in differ[:NAMED])
        more = f" ({len(differ) - NAMED} more differ)" if len(differ) > NAMED else ""
        instead = _starts_new(run, is_own)
        raise CheckpointError(
            f"{path}: the checkpoint's model has {had}, this run asks for {asks}{more}; "
            f"USE_CHECKPOINT_ARGS=1 takes the checkpoint's model, {instead} starts a new run{allow_text(differ)}"
        )
    longest = manifest.about.get("max_seq_length")
    if longest and run.model.seq_length > longest:
        raise CheckpointError(
            f"{path}: the model has a context of {longest} tokens, and SEQ={run.model.seq_length}; "
            f"use SEQ={longest} or less"
        )


def _check_adapters(path: Path, manifest: Manifest, run: RunConfig) -> None:
    """Reject adapters for a run that has none."""
    if (rank := manifest.model.get("lora_rank")) and not run.model.lora_rank:
        raise CheckpointError(
            f"{path}: holds adapters (LORA_RANK={rank}) and not the weights that they change; `megads checkpoint "
            f"merge-lora {path} OUT` makes a plain checkpoint of both, LORA_RANK={rank} trains the adapters further"
        )


def lacks_retriever(run: RunConfig, manifest: Manifest) -> bool:
    """Return whether a checkpoint of a decoder is what a run of retro begins with, whose retriever is new."""
    return run.model.family == "retro" and not run.model.lora_rank and "family" not in manifest.model


def classes_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the classes that the head of a checkpoint scores; empty where it scores none, or choices."""
    outputs = manifest.model.get("num_classes", 0)
    given = shlex.split(manifest.settings.get("finetune", {}).get("classes", ""))
    names = tuple(given or manifest.about.get(HF, {}).get("classes", ()))
    return names if outputs == len(names) else ()


def check_head(path: Path, manifest: Manifest, run: RunConfig, *, is_own: bool) -> None:
    """Reject a checkpoint without the head of the task where nothing would train it, or whose classes are others.

    Raises:
        CheckpointError: scores would be those of random weights, or of other classes.
    """
    if not run.finetune.task:
        return
    outputs, names = manifest.model.get("num_classes", 0), classes_of(manifest)
    classes = tuple(shlex.split(run.finetune.classes))
    if run.train.evaluate_only and outputs != run.model.num_classes:
        has = f"a head with {plural(outputs, 'output')}" if outputs else "no head of a task"
        raise CheckpointError(
            f"{path}: has {has}, TASK={run.finetune.task} needs {run.model.num_classes}; --epochs 0 scores a finetuned "
            "checkpoint, pass --epochs 1 or more to train the head"
        )
    if (is_own or run.train.evaluate_only) and names and classes != names:
        raise CheckpointError(
            f"{path}: its classes are {' '.join(names):.80}, this run's {' '.join(classes):.80}; set TASK_CLASSES to "
            "the checkpoint's, or use another RUN_NAME for a new run"
        )


def changes(before: Mapping[str, Any], run: RunConfig) -> Iterator[str]:
    """Yield a line for every setting that changes results and differs from ``before``, the checkpoint's by section.

    Where a run lies, how it is laid out and how it is started may change freely.
    """
    if not before:
        return
    plan = _planned_before(before["train"]), planned_samples(run)
    if before.get("data", {}).get("stage_table") or run.data.stage_table:
        plan = 0, 0  # compared stage by stage, see resume_notes
    for section in ("model", "train", "optim", "data"):
        for key, now in getattr(run, section).model_dump().items():
            # A setting that is newer than the checkpoint had its default then.
            old = before.get(section, {}).get(key, type(getattr(run, section)).model_fields[key].default)
            is_free = key in FREE or key in SEEDS or (key == "train_iters" and plan[0] == plan[1])
            if old != now and not is_free:
                yield f"had {section}.{key}={old}, this run has {now}"
    yield from _seed_changes(before.get("train", {}), run)
    grows = run.data.sample_order == before.get("data", {}).get("sample_order") == "growing"
    if plan[0] != plan[1] and not grows:
        can_keep = samples_at_end(run) <= plan[0]
        cure = f"PLANNED_SAMPLES={plan[0]} keeps it" if can_keep else "PLANNED_ITERS from the first step on avoids that"
        yield (
            f"planned {plan[0]} samples, this run plans {plan[1]}: the sample order changes, and samples may repeat; "
            f"{cure}"
        )


def _planned_before(train: Mapping[str, Any]) -> int:
    """Return the samples that a checkpoint's run was planned for; ``train``: its settings."""
    ended = BatchSchedule.of_settings(dict(train)).samples_after(train["train_iters"])
    return max(ended + int(train.get("samples_offset", 0)), int(train.get("planned_samples", 0)))


def _seed_changes(train: Mapping[str, Any], run: RunConfig) -> Iterator[str]:
    """Yield which random numbers change. Those of the weights do not: the checkpoint has the weights."""
    now = run.train
    was = {key: train.get(key, type(now).model_fields[key].default) for key in SEEDS}
    order, dropout = was["data_seed"] or was["seed"], was["dropout_seed"] or was["seed"]
    if order != now.seed_of_data:
        yield (
            f"had samples in the order of DATA_SEED (0: SEED) {order}, this run in that of {now.seed_of_data}: "
            "the sample order changes, and samples may repeat"
        )
    if dropout != now.seed_of_dropout and (run.model.hidden_dropout or run.model.attention_dropout):
        yield f"had dropout of DROPOUT_SEED (0: SEED) {dropout}, this run draws from {now.seed_of_dropout}"


def dropout_change(manifest: Manifest, run: RunConfig, device: str) -> str:
    """Return a line if dropout draws other masks from here on than the checkpoint's run would have; else nothing.

    Another seed or probability has a line of its own, see :func:`changes`. ``device``: type of the one that draws.
    """
    model, grid = run.model, run.parallel
    if not manifest.progress or not (model.hidden_dropout or model.attention_dropout):
        return ""
    if manifest.has_generators:
        return (
            "was written by a version that saved RNG state for dropout; dropout now follows from the seed "
            "and the sample number"
        )
    settings, layout = manifest.settings, manifest.layout
    scatter = bool(settings.get("parallel", {}).get("scatter_norms", False))
    was = {
        "device": manifest.about.get("device", device),
        "TP": layout["tensor"],
        "SP": layout["seq"],
        "SCATTER_NORMS": int(scatter),
        "MICRO_BATCH": settings.get("train", {}).get("micro_batch", run.train.micro_batch),
    }
    now = {
        "device": device,
        "TP": grid.tensor if model.attention_dropout or grid.scatter_norms or scatter else layout["tensor"],
        "SP": grid.sequence,
        "SCATTER_NORMS": int(grid.scatter_norms) if model.hidden_dropout else int(scatter),
        "MICRO_BATCH": run.train.micro_batch,
    }
    changed = [f"{name} ({was[name]}, now {now[name]})" for name in was if was[name] != now[name]]
    return f"dropout masks differ with another {', '.join(changed)}" if changed else ""


def engine_of(run: RunConfig) -> str:
    """Return which engine runs a derived ``run``."""
    grid = run.parallel
    return choose(run, grid.tensor * grid.pipeline * grid.sequence * grid.data).kind


def engine_change(manifest: Manifest, run: RunConfig) -> str:
    """Return a line if another engine continues than wrote the checkpoint; else nothing."""
    if not manifest.progress:
        return ""
    was, now = str(manifest.about.get("engine", "deepspeed")), engine_of(run)  # older ones had one engine
    return f"was written by ENGINE={was}, this run has {now}: equal up to rounding, not bitwise" if was != now else ""


def rate_change(manifest: Manifest, run: RunConfig) -> str:
    """Return a line if the next step has another learning rate now than it had for the checkpoint; else nothing."""
    before = run_of(manifest.settings)
    if before is None:
        return ""
    samples = int(manifest.progress.get("scheduled_samples", 0))
    was, now = (Schedule.of(each).lr(samples) for each in (before, run))
    if math.isclose(was, now, rel_tol=1e-9, abs_tol=1e-15):
        return ""
    return (
        f"had a learning rate of {was:.6g} for the next step, this run has {now:.6g}; "
        "SCHEDULE_ON_RESUME=keep takes the checkpoint's schedule"
    )


def resume_notes(manifest: Manifest, run: RunConfig, device: str = "") -> list[str]:
    """Return what a resume reports: a line for every difference to the checkpoint: settings, engine, rate, dropout.

    ``device``: type of the one that draws dropout; empty: not known, taken to be the checkpoint's.
    """
    device = device or str(manifest.about.get("device", ""))
    consumed = int(manifest.progress.get("consumed_samples", 0))
    before, grows = stages_before(manifest.settings), run.data.sample_order == "growing"
    staged = stage_changes(before, StageTable.of(run), consumed, grows=grows) if manifest.settings else ()
    lines = [*changes(manifest.settings, run), *staged, engine_change(manifest, run), rate_change(manifest, run)]
    lines.append(dropout_change(manifest, run, device))
    return [line for line in lines if line]


def stages_before(settings: Mapping[str, Any]) -> StageTable | None:
    """Return the stages of data that a checkpoint was trained with, None where it had none."""
    text = settings.get("data", {}).get("stage_table")
    return parse_table(text) if text else None


def run_of(settings: Mapping[str, Any]) -> RunConfig | None:
    """Return the settings in a checkpoint's manifest as a run, None where it has none that can be read.

    A setting that is newer than the checkpoint has its default.
    """
    known: dict[str, Any] = {}
    for name, field in RunConfig.model_fields.items():
        value = settings.get(name)
        if isinstance(value, Mapping) and isinstance(field.default, Section):
            keys = type(field.default).model_fields
            known[name] = {key: each for key, each in value.items() if key in keys}
    try:
        return RunConfig.model_validate(known) if {"train", "optim"} <= set(known) else None
    except ValidationError:
        return None


def model_of(path: Path, manifest: Manifest, *, scores: bool = False) -> ModelConfig:
    """Return the language model of a checkpoint, derived; ``scores``: also one with the head of a task.

    Raises:
        CheckpointError: its settings are those of another version of megads, or it scores texts and writes none.
    """
    if (outputs := manifest.model.get("num_classes")) and not scores:
        raise CheckpointError(
            f"{path}: a finetuned model, which scores texts (NUM_CLASSES={outputs}) and has no output layer; "
            "`megads finetune --epochs 0 --load RUN` scores files with it"
        )
    settings = manifest.settings.get("model", {})
    settings = {key: value for key, value in settings.items() if key in ModelConfig.model_fields}
    if not settings:
        positions = manifest.model.get("max_positions")
        settings = manifest.about.get(HF, {}).get("settings") or ({"seq_length": positions} if positions else {})
    try:
        return ModelConfig(**{**settings, **manifest.model})
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{path}: its model's {first['loc'][0]} cannot be read: {first['msg'].lower()}") from None
