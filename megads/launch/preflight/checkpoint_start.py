"""What the launcher reads of the checkpoint that a run starts from: the model's shape, the schedule, where it is."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from megads.checkpoint.format.folders import CheckpointRef, iteration_of, list_checkpoints
from megads.checkpoint.format.manifest import Manifest
from megads.checkpoint.function.record import record_of
from megads.checkpoint.resume.compatibility import (
    HF,
    LORA,
    SHAPE_SETTINGS,
    check_head,
    checkpoint_folder,
    classes_of,
    meaningful,
    resume_notes,
    run_of,
    stages_before,
)
from megads.checkpoint.resume.start_point import RestorePlan, StartCheckpoints, check_start, find_start, names_own
from megads.config.data_stages.changes import position_problem
from megads.config.data_stages.table import StageTable
from megads.config.rules.allowed_changes import allowed
from megads.config.run_folder import CONFIG, load_config, note_saved, save_config
from megads.config.schedule.batches import BatchSchedule, planned_samples
from megads.config.schedule.rates import COOLING, COUNTED, INFINITE, PARTS, UNITS, Schedule
from megads.config.schema import RunConfig
from megads.config.setting import Origin
from megads.config.settings.schedule import ScheduleSettings
from megads.config.sources.presets import Layer, preset_title
from megads.config.sources.resolve import Resolved
from megads.config.tree import env_name, fields, nested, value_of
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import identity, spec_of
from megads.errors import CheckpointError, ConfigError, MegadsError
from megads.families.conventions import TOKENIZER as TOKENIZER_CONTENT
from megads.families.table import FAMILIES, FamilyName
from megads.launch.run_folder import RUNS

TOKENIZER = ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file", "vocab_extra_ids")
SCHEDULE = tuple(f"optim.{key}" for key in ScheduleSettings.model_fields)
"""What ``SCHEDULE_ON_RESUME=keep`` takes from the checkpoint."""


@dataclass(frozen=True)
class StartPoint:
    """Where a run begins: at a checkpoint, and with what of it."""

    start: StartCheckpoints
    found: CheckpointRef
    taken: RestorePlan

    @property
    def iteration(self) -> int:
        """The iteration that is done already."""
        return self.found.manifest.iteration if self.taken.progress else 0


def find_start_point(run: RunConfig, run_dir: Path) -> StartPoint | None:
    """Return where ``run`` begins, None for new weights; see ``check_start`` of ``checkpoint.resume.start_point``."""
    found = check_start(run, checkpoint_folder(run, run_dir))
    return StartPoint(*found) if found else None


def start_line(run: RunConfig, start_point: StartPoint | None) -> str:
    """Return how the banner says where the run starts."""
    if start_point is None:
        return f"random weights, seed {run.train.seed_of_weights}"
    path, wanted = start_point.found.path, run.checkpoint
    if not start_point.start.is_own:
        step = start_point.found.manifest.iteration
        return f"{path} of iteration {step}: {start_point.taken.text()}; starts at iteration {start_point.iteration}"
    unused = f"; LOAD={wanted.load} applies to a new run only" if start_point.start.has_begun else ""
    return f"resuming from iteration {start_point.iteration}: {start_point.taken.text()}{unused}"


def difference_lines(run: RunConfig, start_point: StartPoint | None) -> list[str]:
    """Return the lines about differences to the checkpoint that ranks report at the start; for ``--dry-run``."""
    if start_point is None or not start_point.taken.progress or run.train.evaluate_only:
        return []
    return [f"checkpoint {line}" for line in resume_notes(start_point.found.manifest, run)]


def checkpoint_layer(
    run: RunConfig, run_dir: Path | None = None, *, pretrained: bool = False, with_length: bool = False
) -> Layer:
    """Return the settings that ``USE_CHECKPOINT_ARGS=1`` takes of the checkpoint that ``run`` starts from.

    Args:
        run: before ``derive``.
        run_dir: None for the folder that the plain name has.
        pretrained: take its family, too, which decides what of it a head reads.
        with_length: take the length of its samples, too.

    Raises:
        CheckpointError: there is no checkpoint, or none that can be read.
    """
    own = checkpoint_folder(run, run_dir or plain_folder(run))
    start = find_start(run, own)
    if start is None:
        raise CheckpointError(
            f"USE_CHECKPOINT_ARGS=1 needs a checkpoint, and there is none in {own}; set LOAD=RUN, or drop it"
        )
    found = next(start.candidates())
    model = found.manifest.model
    # A head is the task's, and never what a checkpoint says.
    counts = {*meaningful(model), "vocab_multiple"} - {"num_classes", *(() if model.get("lora_rank") else LORA)}
    kept = {f"model.{key}": model[key] for key in SHAPE_SETTINGS if key in model and key in counts}
    about = found.manifest.about
    before = found.manifest.settings.get("model") or about.get(HF, {}).get("settings", {})
    # An imported model has no settings of a run; only an encoder has a pooler or this head.
    is_encoder = not found.manifest.tensors.keys().isdisjoint(("pooler.dense.weight", "lm_head.dense.weight"))
    family: FamilyName | None = (
        before.get("family") or (is_encoder and "bert") or (model.get("decoder_layers") and "t5")
    )
    # Of decoders the settings say all; the samples of the others follow from the family.
    if family and (pretrained or FAMILIES[family].samples != "causal"):
        kept["model.family"] = family
    length = before.get("seq_length") or about.get("max_seq_length")
    if with_length and length:
        kept["model.seq_length"] = length
    if run.finetune.task == "jsonl" and not run.finetune.epochs and (names := classes_of(found.manifest)):
        kept["finetune.classes"] = shlex.join(names)
    return Layer(Origin("checkpoint", str(found.path)), {**kept, **_tokenizer(found)})


def plain_folder(run: RunConfig) -> Path:
    """Return the folder of the run without a number behind its name; ``run`` may be one before ``derive``."""
    return Path(run.dir) if run.dir else RUNS / (run.name or preset_title(run.preset) or run.model.family)


def _tokenizer(found: CheckpointRef) -> dict[str, Any]:
    """Return the tokenizer's settings as far as the checkpoint knows them; none for the demo corpus' own."""
    about = {key: found.manifest.about[key] for key in TOKENIZER if key in found.manifest.about}
    data = found.manifest.settings.get("data", {})
    known = {**about, **{key: data[key] for key in TOKENIZER if key in data}}
    is_named = known.get("tokenizer_model") or known.get("vocab_file") or known.get("tokenizer_type") == "NullTokenizer"
    return {f"data.{key}": value for key, value in known.items()} if is_named else {}


def plan_end(resolved: Resolved, start_point: StartPoint | None) -> Resolved:
    """Return the settings of a run that resumes, with the samples that it will have consumed at its end.

    The steps so far may have been of another batch. Data, schedule and banner count from what was
    consumed; a budget of samples or tokens that gave TRAIN_ITERS is met by steps of the present batch.
    """
    run = resolved.run
    if start_point is None or run.train.evaluate_only or not start_point.taken.progress:
        return resolved
    progress = start_point.found.manifest.progress
    sizes, consumed = BatchSchedule.of(run), int(progress.get("consumed_samples", 0))
    if run.data.stage_table:
        check_stages(run, start_point)
        return resolved
    if not consumed or consumed == sizes.samples_after(start_point.iteration):
        return resolved
    train, changed = run.train, {}
    iters, origins = train.train_iters, dict(resolved.origins)
    if origins["train.train_iters"].layer == "derived":
        iters = start_point.iteration + sizes.iterations_within(train.train_samples, consumed)
        changed["train"] = {"train_iters": iters}
        if origins["optim.lr_decay_iters"].layer == "derived" and run.optim.lr_decay_iters == train.train_iters:
            changed["optim"] = {"lr_decay_iters": iters}
    ends = sizes.after(consumed, max(0, iters - start_point.iteration))
    changed["train"] = {**changed.get("train", {}), "samples_offset": ends - sizes.samples_after(iters)}
    origins["train.samples_offset"] = Origin("checkpoint", str(start_point.found.path))
    note = (
        f"GLOBAL_BATCH={train.global_batch} differs from the {start_point.iteration} steps so far: they consumed "
        f"{consumed} samples, and TRAIN_ITERS={iters} ends at {ends}, not {sizes.samples_after(iters)}"
    )
    sections = {name: getattr(run, name).model_copy(update=values) for name, values in changed.items()}
    return Resolved(run.model_copy(update=sections), origins, (*resolved.notes, note))


def check_stages(run: RunConfig, start_point: StartPoint) -> None:
    """Refuse stages of data in which the run is not where it was.

    Raises:
        CheckpointError: one that has begun has another size, or the batch of the steps so far was another.
    """
    path, manifest = start_point.found.path, start_point.found.manifest
    consumed, table = int(manifest.progress.get("consumed_samples", 0)), StageTable.of(run)
    assert table is not None
    if problem := position_problem(stages_before(manifest.settings), table, consumed):
        raise CheckpointError(f"{path}: {problem}")
    if (expected := BatchSchedule.of(run).samples_after(start_point.iteration)) != consumed:
        raise CheckpointError(
            f"{path}: {start_point.iteration} steps consumed {consumed} samples, and those of {table.file} are "
            f"{expected}; use the GLOBAL_BATCH of the steps so far, or a first stage with that global_batch"
        )


def keep_schedule(resolved: Resolved, start_point: StartPoint | None) -> Resolved:
    """Return the settings with the schedule of the checkpoint, where ``SCHEDULE_ON_RESUME=keep`` asks for it.

    A schedule counts samples: the same sample has the same rate, also with steps of another
    batch. Only the constant part of wsd and infinite-* grows with a longer run.
    """
    run = resolved.run
    if start_point is None or run.checkpoint.schedule != "keep" or not start_point.taken.progress:
        return resolved
    before = run_of(start_point.found.manifest.settings)
    if any(each is not None and Schedule.of(each).pieces for each in (before, run)):
        raise ConfigError("SCHEDULE_ON_RESUME=keep: the stages of the data give the learning rate; leave it unset")
    if before is None:
        note = f"SCHEDULE_ON_RESUME=keep: {start_point.found.path} has no schedule; the current settings are used"
        return replace(resolved, notes=(*resolved.notes, note))
    origin, notes = Origin("checkpoint", str(start_point.found.path)), []
    values = kept_schedule(before, run)
    for name, value in values.items():
        if (now := value_of(run, name)) != value:
            notes.append(f"{env_name(name)}={now} ({resolved.origins[name]}) is overridden by {value} ({origin})")
    optim = run.optim.model_copy(update=nested(values)["optim"])
    return Resolved(
        run.model_copy(update={"optim": optim}),
        {**resolved.origins, **dict.fromkeys(values, origin)},
        (*resolved.notes, *notes),
    )


def kept_schedule(before: RunConfig, run: RunConfig) -> dict[str, Any]:
    """Return the schedule's settings with which ``run`` has the rates of ``before``, both derived, by dotted name."""
    values = {name: value_of(before, name) for name in SCHEDULE}
    old, new = BatchSchedule.of(before), BatchSchedule.of(run)
    ended, ends = planned_samples(before), planned_samples(run)
    schedule = Schedule.of(before)
    grows = ends > ended and schedule.style in COOLING and schedule.decay_samples == ended
    if before.optim.weight_decay_incr_style != "constant":
        given = _as_length(float(schedule.weight_decay.samples), before.model.seq_length, ended)
        values |= {f"optim.weight_decay_{unit}": given.get(unit, 0) for unit in COUNTED}
    if old == new and before.model.seq_length == run.model.seq_length and not grows:
        return values
    lengths = {part: getattr(schedule, f"{part}_samples") for part in PARTS}
    if grows:
        lengths["decay"] += ends - ended
        lengths["constant"] += ends - ended if schedule.style in INFINITE else 0
    for part, samples in lengths.items():
        given = _as_length(samples, run.model.seq_length, lengths["decay"])
        for unit in UNITS:
            if (name := f"optim.lr_{part}_{unit}") in values:
                values[name] = given.get(unit, 0)
    values["optim.lr_decay_iters"] = new.iterations_within(int(lengths["decay"]))
    return values


def _as_length(samples: float, seq: int, whole: float) -> dict[str, float]:
    """Return a length in the unit that has it exactly, by the unit's name."""
    if samples.is_integer():
        return {"samples": int(samples)}
    if (samples * seq).is_integer():
        return {"tokens": int(samples * seq)}
    return {"frac": samples / whole} if samples < whole else {"samples": int(samples)}


@dataclass
class Saved:
    """What a run has saved since this command was given.

    Checkpoints that were there before may be of a future that ``CKPT_STEP`` abandoned, so
    that the newest alone does not tell.
    """

    folder: Path
    first: int = 0  # the iteration at which this command began
    before: frozenset[tuple[str, int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.before = frozenset(self._stamps())

    def newest(self) -> int:
        """Return the iteration that the run would resume from now, 0 for none."""
        # What ranks found damaged has another name since.
        there = [iteration_of(Path(stamp[0])) for stamp in self._stamps()]
        return self.since() or max((found for found in there if found <= self.first), default=self.first)

    def since(self) -> int:
        """Return the newest iteration that was saved, 0 for none."""
        return max((iteration_of(Path(stamp[0])) for stamp in self._stamps() if stamp not in self.before), default=0)

    def is_any(self) -> bool:
        """Return whether there is something new."""
        return bool(set(self._stamps()) - self.before)

    def _stamps(self) -> list[tuple[str, int, int]]:
        """Return of every checkpoint what changes when it is written again."""
        stamps = []
        with suppress(CheckpointError):
            for path in list_checkpoints(self.folder):
                with suppress(OSError):  # it is gone again
                    facts = os.stat(path)
                    stamps.append((path.name, facts.st_ino, facts.st_mtime_ns))
        return stamps


def settings_used_once(run: RunConfig, run_dir: Path) -> list[str]:
    """Return the settings of ``run`` that say from where it start_point and are not to be given again on resume.

    With another run's ``LOAD`` all of them may be: they are of no effect once the run has
    checkpoints of its own. Its own folder as ``LOAD``, as scripts of Megatron-LM have it, is too.
    """
    wanted = run.checkpoint
    if wanted.load and not names_own(wanted.load, checkpoint_folder(run, run_dir)):
        return []
    is_one = iteration_of(Path(wanted.load)) >= 0
    done = {"load": is_one, "step": True, "load_optim": wanted.save_optim}
    names = [f"checkpoint.{name}" for name, is_done in done.items() if is_done]
    return [name for name in names if value_of(run, name) != fields()[name].default]


def resume_from_saved(run_dir: Path, resolved: Resolved) -> None:
    """Have the next start of the ranks resume from what this command saved, not from where it went back to.

    Raises:
        ConfigError: the settings cannot be read or written.
    """
    run = load_config(run_dir / CONFIG)
    plain = nested({name: fields()[name].default for name in settings_used_once(run, run_dir)})
    run = run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update=plain.get("checkpoint", {}))})
    save_config(run, resolved.origins, run_dir / CONFIG)
    note_saved(run_dir)


def check_fits_task(run: RunConfig, start_point: StartPoint | None) -> None:
    """Compare a checkpoint's tokenizer and the head of its task with the run's.

    Raises:
        ConfigError: the tokenizers differ, or there is no checkpoint that ``--epochs 0`` could score.
        CheckpointError: nothing would train its head, or it is of other classes.
    """
    check_tokenizer(run, start_point)
    if start_point is not None:
        check_head(start_point.found.path, start_point.found.manifest, run, is_own=start_point.start.is_own)
    elif run.finetune.task and run.train.evaluate_only:
        raise ConfigError("--epochs 0 scores a finetuned checkpoint, and there is none; pass --load RUN")


def check_tokenizer(run: RunConfig, start_point: StartPoint | None) -> None:
    """Compare the tokenizer of the checkpoint with the run's, by content where both are there, else by type.

    With ``FORCE=1``, and where one of them is NullTokenizer, whose ids are what the data says, nothing is compared.

    Raises:
        ConfigError: they differ.
    """
    if start_point is None or run.train.force or TOKENIZER_CONTENT in allowed(run):
        return
    before, now = _spec(start_point.found.manifest), spec_of(run)
    record = record_of(start_point.found.manifest)
    # The content that the weights were trained with, whatever its files have now.
    content = str(record.conventions.get(TOKENIZER_CONTENT, "")) if record else ""
    if before is None or (before == now and not content) or "NullTokenizer" in (before.type, now.type):
        return
    identities = (content or _identity(before), _identity(now))
    same = identities[0] == identities[1] if all(identities) else before.type == now.type
    if not same:
        if before == now:
            raise ConfigError(
                f"{_name(now)}: its content is another one than when {start_point.found.path} was trained with it: the "
                f"ids have other meanings; restore the files, or set ALLOW_CHANGES={TOKENIZER_CONTENT} to use them"
            )
        raise ConfigError(
            f"{start_point.found.path} was trained with {_name(before)}, this run uses {_name(now)}: the ids have "
            "other meanings; set the checkpoint's TOKENIZER_TYPE and its files, or FORCE=1 to use the weights anyway"
        )


def _spec(manifest: Manifest) -> TokenizerSpec | None:
    """Return the tokenizer that the checkpoint names, None where it names none."""
    about = manifest.about
    if "tokenizer_type" in about:
        return TokenizerSpec(
            str(about["tokenizer_type"]), str(about.get("tokenizer_model", "")), str(about.get("vocab_file", ""))
        )
    before = run_of(manifest.settings)
    try:
        return spec_of(before) if before else None
    except MegadsError:
        return None


def _identity(spec: TokenizerSpec) -> str:
    """Return the fingerprint of a tokenizer, "" where its files are not there any more or not yet."""
    try:
        return identity(spec)
    except MegadsError:
        return ""


def _name(spec: TokenizerSpec) -> str:
    return f"{spec.type} {spec.model or spec.vocab_file}".rstrip()
