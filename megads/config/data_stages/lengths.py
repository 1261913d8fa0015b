"""From the stages of a file to a run: the steps of each, and the settings of the run that follow from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from megads.config.data_stages.rates import pieces_of
from megads.config.data_stages.read import GivenStage, read_stages
from megads.config.data_stages.table import SEED_STEP, DataStage, StageData, StageTable
from megads.config.schedule.rates import COUNTED, PARTS, UNITS
from megads.config.setting import Origin
from megads.config.sources.resolve import LENGTHS, PLANNED, Values, rank_of
from megads.config.tree import env_name
from megads.errors import ConfigError

_TABLE, _FILE, _SEQ = "data.stage_table", "data.stages", "model.seq_length"
_SCHEDULE = (
    *("optim.lr_decay_style", "optim.min_lr", "optim.lr_cooldown_style", "optim.lr_constant", "optim.lr_timescale"),
    *(f"optim.lr_{part}_{unit}" for part in PARTS for unit in UNITS if (part, unit) != ("decay", "frac")),
)


def fill_longest(values: Values) -> None:
    """Let SEQ be the length of the longest samples of all stages: memory and positions are planned for it.

    Raises:
        ConfigError: the file cannot be read, or the length of the first samples is not known.
    """
    if not values[_FILE]:
        values.put(_TABLE, "", Origin("default"))
        return
    given = read_stages(Path(values[_FILE]))
    lengths = _seqs(given, values[_SEQ])
    for each, length in zip(given, lengths, strict=True):
        if each.seq and values.rank(_SEQ) >= rank_of(Origin("env")) and max(lengths) != values[_SEQ]:
            raise ConfigError(f"{values.shown(_SEQ)}, and {each.where} has seq {length}; leave SEQ unset")
    if max(lengths) != values[_SEQ]:
        values.derive(_SEQ, max(lengths), "the longest stage's")


def _seqs(given: Sequence[GivenStage], seq: int) -> list[int]:
    """Return the tokens of a sample of each stage; without ``seq`` a stage has that of the one before."""
    if any(each.seq for each in given) and not given[0].seq:
        other = next(each for each in given if each.seq)
        raise ConfigError(f"{given[0].where} has no seq, and {other.name} has {other.seq}; give it one, too")
    found = []
    for each in given:
        seq = each.seq or seq
        found.append(seq)
    return found


def fill_stages(values: Values) -> None:
    """Plan the stages: TRAIN_ITERS follows from them, GLOBAL_BATCH is known.

    Raises:
        ConfigError: a stage is shorter than a step, or a setting contradicts the stages.
    """
    if not values[_FILE]:
        return
    path = Path(values[_FILE])
    _refuse_others(values, path)
    table = plan_stages(read_stages(path), values[_SEQ], values["train.global_batch"], str(path.absolute()))
    for name in LENGTHS:
        iters = values["train.train_iters"]
        if name == "train.train_iters" and values.rank(name) >= rank_of(Origin("env")) and iters == table.iters:
            continue
        if values[name] and values.rank(name) >= rank_of(Origin("env")):
            raise ConfigError(
                f"{values.shown(name)}, and the stages of {path} are {table.iters} iterations; leave "
                f"{env_name(name)} unset (EXIT_INTERVAL stops earlier)"
            )
        values.put(name, 0, Origin("default"))
    for name in PLANNED:  # of a checkpoint or a file: stages have plans of their own
        values.put(name, 0, Origin("default"))
    values.derive("train.train_iters", table.iters, "the stages'")
    values.derive("train.train_samples", table.samples, "the stages'")
    values.derive("train.train_tokens", table.tokens, "the stages'")
    values.derive(_TABLE, table.text(), "DATA_STAGES")
    if table.has_rates:
        values.derive("optim.lr_decay_iters", table.iters, "the stages'")
        pieces_of(table, values["optim.lr"], values["optim.lr_warmup_init"])  # refuses parts that are too long


def _is_given(values: Values, name: str) -> bool:
    return values.origins[name].layer in ("env", "cli")


def _refuse_others(values: Values, path: Path) -> None:
    """Refuse settings that say what the stages say, or that they have no meaning with."""
    given, user = read_stages(path), rank_of(Origin("env"))
    seqs = _seqs(given, values[_SEQ])
    refused = {
        **{name: "give the stage that may grow a length 'planned'" for name in PLANNED if _is_given(values, name)},
        "train.rampup_batch_size": "give each stage a global_batch",
        "finetune.task": "a task has no stages",
        "data.retro_project_dir": "a project of retro has no stages",
        "lr_finder.enabled": "a sweep of the learning rate has no stages",
    }
    for name, why in refused.items():
        if values[name]:
            raise ConfigError(f"{values.shown(name)} cannot be combined with DATA_STAGES={path}: {why}")
    if values["model.family"] in ("bert", "t5") and len(set(seqs)) > 1:
        raise ConfigError(
            f"DATA_STAGES={path}: stages of several seq need a decoder, and MODEL_FAMILY={values['model.family']} "
            "has samples of one length"
        )
    tokens = [name for part in PARTS if (name := f"optim.lr_{part}_tokens") in values.values]
    unclear = [*tokens, "optim.weight_decay_tokens"] if len(set(seqs)) > 1 else []
    rates = [each.rate for each in given if each.rate]
    dead = [name for name in _SCHEDULE if name in values.values] if rates else []
    needs_lr = given[0].rate and given[0].rate.peak is None
    if rates and not needs_lr and not any(rate.warmup and rate.peak is None for rate in rates):
        dead.append("optim.lr")
    for name in (*unclear, *dead):
        if values[name] and values.rank(name) >= user:
            why = "the stages give the learning rate" if name in dead else f"use another unit of {', '.join(COUNTED)}"
            raise ConfigError(f"{values.shown(name)} has no effect with DATA_STAGES={path}: {why}")


def _data_of(given: StageData, before: StageData) -> StageData:
    """Return what a stage is drawn from: without a list that of the stage before, with its own mixture if any."""
    if given.is_named:
        return given
    return StageData(before.file_list, before.lines, given.mixture or before.mixture)


def plan_stages(given: Sequence[GivenStage], seq: int, batch: int, file: str) -> StageTable:
    """Return the stages in whole steps.

    Raises:
        ConfigError: one is shorter than a step, or the first has no learning rate where others have one.
    """
    if any(each.rate for each in given) and given[0].rate is None:
        raise ConfigError(
            f"{given[0].where} has no lr, and others have; give it one, as lr: {{warmup: 1%}} or lr: constant"
        )
    stages: list[DataStage] = []
    wanted: list[int] = []
    for number, (each, length) in enumerate(zip(given, _seqs(given, seq), strict=True)):
        size = each.batch or batch
        of_step = {"tokens": size * length, "samples": size, "iters": 1}[each.unit]
        if each.length < of_step:
            raise ConfigError(
                f"{each.where}: {each.unit} {each.length} is less than one step of {size} samples x {length} tokens; "
                f"use {of_step} or more"
            )
        before = stages[-1] if stages else None
        data = _data_of(each.data, before.data if before else StageData())
        seed, offset = SEED_STEP * number if each.seed is None else each.seed, 0
        if before and each.seed is None and (data, length) == (before.data, before.seq):
            seed, offset = before.seed, before.offset + before.samples
        first = before.end if before else 0
        sizes = (first, each.length // of_step, size, length, seed)
        stages.append(DataStage(each.name, each.line, *sizes, data, each.rate, offset, each.past))
        wanted.append(offset + (each.planned if each.unit == "samples" else each.planned // of_step * size))
    return StageTable(file, tuple(_with_plans(stages, wanted)))


def _with_plans(stages: Sequence[DataStage], wanted: Sequence[int]) -> list[DataStage]:
    """Return ``stages`` with the samples that each one's order is made for: one order for all that read on."""
    found: list[DataStage] = []
    plan = 0
    for stage, least in zip(reversed(stages), reversed(wanted), strict=True):
        plan = max(plan, least, stage.offset + stage.samples)
        found.append(replace(stage, planned=plan))
        plan = plan if stage.offset else 0
    # Of stages that read on the first may have the longest plan.
    for number in range(len(found) - 1, 0, -1):
        if found[number - 1].offset:
            found[number - 1] = replace(found[number - 1], planned=found[number].planned)
    return found[::-1]
