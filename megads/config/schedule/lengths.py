"""Which of a schedule's lengths count, and what follows where nobody gives one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from megads.config.schedule.batches import BatchSchedule, planned_samples
from megads.config.schedule.rates import CONSTANT_OF_PEAK, COOLDOWN_OF, INFINITE, PARTS, UNITS, Schedule
from megads.config.schema import RunConfig
from megads.config.setting import Origin
from megads.config.sources.flags import flags
from megads.config.sources.resolve import LENGTHS, Values
from megads.config.tree import env_name, nested
from megads.errors import ConfigError
from megads.text.plural import plural

_TOKENS = "train.train_tokens"
SWEEP_STEPS = 100
"""Of a sweep of the learning rate whose number of steps nobody gives; fewer say little."""


def keep_first_limit(values: Values, steps: Mapping[str, int]) -> str:
    """Keep that of two lengths of a run which is reached first; return a line about it.

    Megatron-DeepSpeed's ``--train-tokens`` is a second limit besides ``--train-samples`` or ``--train-iters``,
    over which the learning rate falls if its decay has no length.

    Args:
        steps: what each length that was given means in steps, by dotted name.

    Returns:
        An empty text where the lengths contradict each other.
    """
    if _TOKENS not in steps or len(steps) != 2 or not all(values.origins[name].detail in flags() for name in steps):
        return ""
    first, other = sorted(steps, key=lambda name: steps[name])
    shown = {
        name: f"{env_name(name)}={values[name]} ({values.origins[name]}, {plural(count, 'step')})"
        for name, count in steps.items()
    }
    if first == _TOKENS and not lengths_given(values, "decay"):
        values.put(other.replace("train.train_", "optim.lr_decay_"), values[other], values.origins[other])
    values.put(other, 0, Origin("default"))
    return f"{shown[first]} ends the run before {shown[other]}"


def repeat_samples(values: Values) -> None:
    """Let RETRO_CYCLIC_TRAIN_ITERS be the length of the run; as in Megatron-core the decay keeps what was given."""
    cyclic = "data.retro_cyclic_train_iters"
    if not values[cyclic]:
        return
    for name in LENGTHS:
        if values[name] and values.origins[name].layer != "default" and not lengths_given(values, "decay"):
            values.put(name.replace("train.train_", "optim.lr_decay_"), values[name], values.origins[name])
        values.put(name, 0, Origin("default"))
    values.put("train.train_iters", values[cyclic], values.origins[cyclic])


def lengths_given(values: Values, part: str) -> list[str]:
    """Return the settings that give ``part`` of the schedule a length; a default fraction is none."""
    names = [name for unit in UNITS if (name := f"optim.lr_{part}_{unit}") in values.values and values[name]]
    return [name for name in names if values.origins[name].layer not in ("default", "derived")]


def fill_schedule(values: Values) -> None:
    """Fill what follows in the schedule; the length of the run is known.

    A length that is given as a fraction stays one: the schedule counts samples, so that it
    need not be a whole number of steps.

    Raises:
        ConfigError: two lengths of one part differ.
    """
    sizes = BatchSchedule.parse(values["train.rampup_batch_size"], values["train.global_batch"])
    steps, samples, tokens = (values[f"optim.lr_decay_{unit}"] for unit in ("iters", "samples", "tokens"))
    if not steps and (samples or tokens):
        whole = sizes.iterations_within(samples or tokens // values["model.seq_length"])
        values.fill("optim.lr_decay_iters", whole, f"LR_DECAY_{'SAMPLES' if samples else 'TOKENS'}")
    else:
        planned = values["train.planned_iters"]
        values.fill(
            "optim.lr_decay_iters", planned or values["train.train_iters"], f"{'PLANNED' if planned else 'TRAIN'}_ITERS"
        )
    style = values["optim.lr_decay_style"]
    if style in COOLDOWN_OF and not lengths_given(values, "cooldown"):
        values.fill("optim.lr_cooldown_frac", COOLDOWN_OF[style], f"{COOLDOWN_OF[style]:g} of LR_DECAY_STYLE={style}")
    if style in INFINITE:
        values.fill("optim.lr_constant", CONSTANT_OF_PEAK * values["optim.lr"], f"{CONSTANT_OF_PEAK:g} LR")
    if values["lr_finder.enabled"]:
        iters = values["train.train_iters"]
        steps = max(2, min(iters, max(SWEEP_STEPS, math.ceil(iters / 10))))
        values.fill("lr_finder.iters", steps, f"{SWEEP_STEPS}, or TRAIN_ITERS / 10; at most TRAIN_ITERS")
    for part in PARTS:
        _refuse_two_lengths(values, part)


def _refuse_two_lengths(values: Values, part: str) -> None:
    given, origins = lengths_given(values, part), values.origins
    top = [name for name in given if not name.endswith("_frac")]
    # A fraction of another layer is above what it replaces (see resolve) or below what replaces it.
    given = [name for name in given if name in top or any(origins[name].layer == origins[o].layer for o in top)]
    samples = {name: length_by(values.values, part, name) for name in given} if len(given) > 1 else {}
    for other in given[1:]:
        if not math.isclose(samples[given[0]], samples[other], rel_tol=1e-9):
            each = " and ".join(f"{values.shown(name)} = {samples[name]:.12g} samples" for name in (given[0], other))
            raise ConfigError(f"{each} differ; leave one of them unset")


def length_by(values: Mapping[str, Any], part: str, name: str) -> float:
    """Return the samples of ``part`` if only the setting ``name`` gave its length."""
    others = [f"optim.lr_{part}_{unit}" for unit in UNITS]
    only = {**values, **{each: 0 for each in others if each in values and each != name}}
    schedule = Schedule.of(RunConfig.model_validate(nested(only)))
    return float(getattr(schedule, f"{part}_samples"))


def rises_to_the_end(values: Values, run: RunConfig) -> str:
    """Return a line where the warm-up is longer than the run, which is derived."""
    if run.train.train_iters == 1 or Schedule.of(run).warmup_samples < planned_samples(run):
        return ""
    name, train = next(iter(lengths_given(values, "warmup")), "optim.lr_warmup_frac"), run.train
    last = f"PLANNED_ITERS={train.planned_iters}" if train.planned_iters else f"TRAIN_ITERS={train.train_iters}"
    return f"{values.shown(name)}: the learning rate still rises when {last} end"
