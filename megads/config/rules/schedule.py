"""Rules of the learning rate's and the weight decay's schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from megads.config.rules.advice import Change, Problem, each_of
from megads.config.schedule.rates import COOLING, COUNTED, INFINITE, UNITS, WSD, Schedule
from megads.config.schema import RunConfig
from megads.config.settings.schedule import AS_WEIGHT_DECAY
from megads.config.tree import env_name, fields, value_of


def _rates(run: RunConfig, world_size: int) -> Iterator[Problem]:
    optim = run.optim
    if optim.min_lr > optim.lr:
        text = f"MIN_LR={optim.min_lr:g} is larger than LR={optim.lr:g}"
        # A rate above 0.1 trains nothing: MIN_LR is the slip then.
        larger: list[Change] = [{"optim.lr": optim.min_lr * 10}] if optim.min_lr <= 0.01 else []
        yield Problem(text, [{"optim.min_lr": optim.lr / 10}, *larger], overridable=("optim.min_lr",))
    if optim.lr_warmup_init > optim.lr:
        text = f"LR_WARMUP_INIT={optim.lr_warmup_init:g} is larger than LR={optim.lr:g}"
        ways: list[Change] = [{"optim.lr_warmup_init": 0.0}, {"optim.lr": optim.lr_warmup_init}]
        yield Problem(text, ways, overridable=("optim.lr_warmup_init",))


def _warmup(run: RunConfig, world_size: int) -> Iterator[Problem]:
    optim, schedule = run.optim, Schedule.of(run)
    if schedule.warmup_samples < schedule.decay_samples:
        return
    name = _giver(run, "warmup")
    if name == "optim.lr_warmup_iters":
        yield Problem(
            f"LR_WARMUP_ITERS={optim.lr_warmup_iters} takes all of the decay of {optim.lr_decay_iters} steps "
            f"(LR_DECAY_ITERS, else TRAIN_ITERS)",
            [
                {name: max(1, optim.lr_decay_iters // 10)},
                {"optim.lr_decay_iters": 10 * optim.lr_warmup_iters},
            ],
            overridable=(name,),
        )
    yield Problem(
        f"{_shown(run, name)} takes all of the decay of {schedule.decay_samples:.12g} samples",
        [{name: _tenth(run, name)}],
        overridable=(name,),
    )


def _cooldown(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """A part that cools must fit behind the warm-up, and be asked for by the style."""
    style, name = run.optim.lr_decay_style, _giver(run, "cooldown")
    if style not in COOLING:
        if name:
            unset = 0.0 if name.endswith("_frac") else 0
            text = f"{_shown(run, name)} has no effect with LR_DECAY_STYLE={style}"
            yield Problem(text, [{"optim.lr_decay_style": WSD}, {name: unset}])
        return
    schedule = Schedule.of(run)
    parts = {_giver(run, "warmup"): schedule.warmup_samples, name: schedule.cooldown_samples}
    if style in INFINITE:
        parts[_giver(run, "constant")] = schedule.constant_samples
    used = sum(parts.values())
    if used > schedule.decay_samples:
        each = " and ".join(f"{_shown(run, each)} = {samples:.12g}" for each, samples in parts.items() if samples)
        yield Problem(
            f"{each} samples are more than the decay's {schedule.decay_samples:.12g}",
            [{name: _tenth(run, name)}, *_shorter_warmup(run, schedule.decay_samples - used)],
            "use fewer",
            overridable=(name, _giver(run, "warmup")),
        )


def _infinite(run: RunConfig, world_size: int) -> Iterator[Problem]:
    optim, style = run.optim, run.optim.lr_decay_style
    if style not in INFINITE:
        if optim.lr_constant:
            text = f"LR_CONSTANT={optim.lr_constant:g} has no effect with LR_DECAY_STYLE={style}"
            yield Problem(text, [*each_of("optim.lr_decay_style", INFINITE), {"optim.lr_constant": 0.0}])
        return
    if not optim.min_lr:
        text = f"LR_DECAY_STYLE={style} ends with an exponential decay, which never reaches MIN_LR=0"
        yield Problem(text, [{"optim.min_lr": optim.lr_constant / 10}], overridable=("optim.min_lr",))
    if not optim.min_lr <= optim.lr_constant <= optim.lr:
        text = f"LR_CONSTANT={optim.lr_constant:g} is not between MIN_LR={optim.min_lr:g} and LR={optim.lr:g}"
        ways: list[Change] = [{"optim.lr_constant": (optim.min_lr + optim.lr) / 2}]
        if optim.min_lr > optim.lr_constant:
            ways.append({"optim.min_lr": optim.lr_constant / 10})
        yield Problem(text, ways, overridable=("optim.lr_constant", "optim.min_lr"))


def _weight_decay(run: RunConfig, world_size: int) -> Iterator[Problem]:
    optim = run.optim
    for name in ("optim.start_weight_decay", "optim.end_weight_decay"):
        value = value_of(run, name)
        if value == AS_WEIGHT_DECAY:
            continue
        if value < 0:
            yield Problem(f"{_shown(run, name)} is negative", [{name: 0.0}, {name: AS_WEIGHT_DECAY}])
        if optim.weight_decay_incr_style == "constant" and value != optim.weight_decay:
            text = f"{_shown(run, name)} has no effect with WEIGHT_DECAY_INCR_STYLE=constant"
            ways: list[Change] = [{"optim.weight_decay_incr_style": "linear"}, {name: AS_WEIGHT_DECAY}]
            yield Problem(text, ways, overridable=(name,))


def _weight_decay_lengths(run: RunConfig, world_size: int) -> Iterator[Problem]:
    given = [name for unit in COUNTED if value_of(run, name := f"optim.weight_decay_{unit}")]
    if len(given) > 1:
        both = " and ".join(_shown(run, name) for name in given)
        yield Problem(f"{both} are two lengths of one thing", [{name: 0} for name in given], overridable=tuple(given))


def _finder(run: RunConfig, world_size: int) -> Iterator[Problem]:
    finder, iters = run.lr_finder, run.train.train_iters
    if not finder.enabled:
        return
    if finder.lowest >= finder.highest:
        text = f"LR_FINDER_MIN={finder.lowest:g} is not below LR_FINDER_MAX={finder.highest:g}"
        yield Problem(text, [{"lr_finder.lowest": finder.highest / 1e6}], overridable=("lr_finder.lowest",))
    if not 2 <= finder.iters <= iters:
        yield Problem(
            f"LR_FINDER_ITERS={finder.iters} must be from 2 to TRAIN_ITERS={iters}, whose samples it takes",
            [
                *([{"lr_finder.iters": max(2, iters // 10)}] if iters > 1 else []),
                {"train.train_iters": max(2, finder.iters)},
            ],
            "" if iters > 1 else "a run of 2 steps or more",
        )


RULES: tuple[Callable[[RunConfig, int], Iterator[Problem]], ...] = (
    *(_rates, _warmup, _cooldown, _infinite, _weight_decay, _weight_decay_lengths, _finder),
)


def _giver(run: RunConfig, part: str) -> str:
    """Return the setting that gives ``part`` its length, empty where none does."""
    names = [f"optim.lr_{part}_{unit}" for unit in UNITS]
    return next((name for name in names if name in fields() and value_of(run, name)), "")


def _shorter_warmup(run: RunConfig, missing: float) -> Iterator[Change]:
    """Yield a warm-up that leaves ``missing`` (negative) samples more to the other parts."""
    name, now = _giver(run, "warmup"), Schedule.of(run).warmup_samples
    if name and now + missing >= 0:
        value = value_of(run, name) * (now + missing) / now
        shorter = int(value) if isinstance(value_of(run, name), int) else math.floor(value * 1e6 + 0.01) / 1e6
        # 0 steps, samples or tokens are "not given".
        if shorter or isinstance(shorter, float):
            yield {name: shorter}


def _shown(run: RunConfig, name: str) -> str:
    return f"{env_name(name)}={value_of(run, name):.12g}" if name else "no warm-up"


def _tenth(run: RunConfig, name: str) -> float:
    """Return a tenth of the decay in the unit of ``name``."""
    schedule = Schedule.of(run)
    samples = int(schedule.decay_samples) // 10
    of_unit = {"samples": samples, "tokens": samples * run.model.seq_length, "iters": run.optim.lr_decay_iters // 10}
    return of_unit.get(name.rpartition("_")[2], 0.1)
