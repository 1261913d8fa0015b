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
from megads.config.sources.resolve import Resolved
from megads.config.tree import env_name, nested
from megads.errors import ConfigError
from megads.text.plural import plural

_TOKENS = "train.train_tokens"
SWEEP_STEPS = 100
"""Of a sweep of the learning rate whose number of steps nobody gives; fewer say little."""


def keep_first_limit(values: dict[str, Any], origins: dict[str, Origin], steps: Mapping[str, int]) -> str:
    """Keep that of two lengths of a run which is reached first; return a line about it.

    Megatron-DeepSpeed's ``--train-tokens`` is a second limit besides ``--train-samples`` or ``--train-iters``,
    over which the learning rate falls if its decay has no length.

    Args:
        values: settings by dotted name, changed in place.
        origins: where they came from, changed in place.
        steps: what each length that was given means in steps, by dotted name.

    Returns:
        An empty text where the lengths contradict each other.
    """
    if _TOKENS not in steps or len(steps) != 2 or not all(origins[name].detail in flags() for name in steps):
        return ""
    first, other = sorted(steps, key=lambda name: steps[name])
    shown = {
        name: f"{env_name(name)}={values[name]} ({origins[name]}, {plural(steps[name], 'step')})" for name in steps
    }
    if first == _TOKENS and not lengths_given(values, origins, "decay"):
        decay = other.replace("train.train_", "optim.lr_decay_")
        values[decay], origins[decay] = values[other], origins[other]
    values[other], origins[other] = 0, Origin("default")
    return f"{shown[first]} ends the run before {shown[other]}"


def lengths_given(values: Mapping[str, Any], origins: Mapping[str, Origin], part: str) -> list[str]:
    """Return the settings that give ``part`` of the schedule a length; a default fraction is none."""
    names = [name for unit in UNITS if (name := f"optim.lr_{part}_{unit}") in values and values[name]]
    return [name for name in names if origins[name].layer not in ("default", "derived")]


def fill_schedule(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a schedule that follow from others, and the formula of each.

    A length that is given as a fraction stays one: the schedule counts samples, so that it
    need not be a whole number of steps.

    Args:
        values: settings by dotted name; the length of the run is known.
        origins: where they came from.

    Raises:
        ConfigError: two lengths of one part differ.
    """
    found: dict[str, Any] = {}
    formulas: dict[str, str] = {}

    def fill(name: str, value: Any, formula: str) -> None:
        if not values[name]:
            found[name], formulas[name] = value, formula

    sizes, seq = (
        BatchSchedule.parse(values["train.rampup_batch_size"], values["train.global_batch"]),
        "model.seq_length",
    )
    steps, samples, tokens = (values[f"optim.lr_decay_{unit}"] for unit in ("iters", "samples", "tokens"))
    if not steps and (samples or tokens):
        whole = samples or tokens // values[seq]
        fill("optim.lr_decay_iters", sizes.iterations_within(whole), f"LR_DECAY_{'SAMPLES' if samples else 'TOKENS'}")
    else:
        fill("optim.lr_decay_iters", values["train.train_iters"], "TRAIN_ITERS")
    style = values["optim.lr_decay_style"]
    if style in COOLDOWN_OF and not lengths_given(values, origins, "cooldown"):
        fill("optim.lr_cooldown_frac", COOLDOWN_OF[style], f"{COOLDOWN_OF[style]:g} of LR_DECAY_STYLE={style}")
    if style in INFINITE:
        fill("optim.lr_constant", CONSTANT_OF_PEAK * values["optim.lr"], f"{CONSTANT_OF_PEAK:g} LR")
    if values["lr_finder.enabled"]:
        iters = values["train.train_iters"]
        wanted = max(SWEEP_STEPS, math.ceil(iters / 10))
        fill("lr_finder.iters", max(2, min(iters, wanted)), f"{SWEEP_STEPS}, or TRAIN_ITERS / 10; at most TRAIN_ITERS")
    # A machine's 0 that was filled just now is not a length that somebody gave.
    _refuse_two_lengths({**values, **found}, {**origins, **{name: Origin("derived") for name in found}})
    return found, formulas


def _refuse_two_lengths(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> None:
    for part in PARTS:
        given = lengths_given(values, origins, part)
        top = [name for name in given if not name.endswith("_frac")]
        # A fraction of another layer is above what it replaces (see resolve) or below what replaces it.
        given = [name for name in given if name in top or any(origins[name].layer == origins[o].layer for o in top)]
        if len(given) > 1:
            _refuse_if_different(values, origins, part, given)


def _refuse_if_different(values: Mapping[str, Any], origins: Mapping[str, Origin], part: str, given: list[str]) -> None:
    samples = {name: length_by(values, part, name) for name in given}
    first = given[0]
    for other in given[1:]:
        if not math.isclose(samples[first], samples[other], rel_tol=1e-9):
            each = " and ".join(
                f"{env_name(name)}={values[name]} ({origins[name]}) = {samples[name]:.12g} samples"
                for name in (first, other)
            )
            raise ConfigError(f"{each} differ; leave one of them unset")


def length_by(values: Mapping[str, Any], part: str, name: str) -> float:
    """Return the samples of ``part`` if only the setting ``name`` gave its length."""
    others = [f"optim.lr_{part}_{unit}" for unit in UNITS]
    only = {**values, **{each: 0 for each in others if each in values and each != name}}
    schedule = Schedule.of(RunConfig.model_validate(nested(only)))
    return float(getattr(schedule, f"{part}_samples"))


def rises_to_the_end(resolved: Resolved) -> str:
    """Return a line where the warm-up is longer than the run; ``resolved`` is derived."""
    run = resolved.run
    if run.train.train_iters == 1 or Schedule.of(run).warmup_samples < planned_samples(run):
        return ""
    values = {f"optim.{key}": value for key, value in run.optim.model_dump().items()}
    name = next(iter(lengths_given(values, resolved.origins, "warmup")), "optim.lr_warmup_frac")
    return (
        f"{env_name(name)}={values[name]} ({resolved.origins[name]}): the learning rate still rises when "
        f"TRAIN_ITERS={run.train.train_iters} end"
    )
