"""Settings of the learning rate and the weight decay over a run.

A length may be given in steps, samples or tokens; ``megads.config.schedule.rates`` turns each into
samples, which is what the schedule counts.
"""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, fraction, in_steps, setting

Style = Literal[
    "cosine",
    "linear",
    "constant",
    "inverse-square-root",
    "wsd",
    "infinite-cosine",
    "infinite-inverse-square-root",
]
CooldownStyle = Literal["sqrt", "linear", "cosine", "exponential"]

AS_WEIGHT_DECAY = -1.0
"""What START_WEIGHT_DECAY and END_WEIGHT_DECAY are while nobody gives them."""


class ScheduleSettings(Section):
    """How learning rate and weight decay change during a run; a part of ``optim``."""

    lr: float = setting(2e-4, "LR --lr", "peak learning rate", ge=0)
    min_lr: float = setting(0.0, "MIN_LR --min-lr", "learning rate at the end of the decay", ge=0)
    lr_decay_style: Style = setting(
        "cosine",
        "LR_DECAY_STYLE --lr-decay-style",
        "shape of the decay; wsd: warm-up, constant, and a cool-down at the end",
        flags={"--lr_constant_plus_cooldown": "wsd"},
        synonyms={"infinite-inv-square-root": "infinite-inverse-square-root"},
    )
    lr_warmup_init: float = setting(
        0.0, "LR_WARMUP_INIT --lr-warmup-init", "learning rate of the first step of a warm-up", ge=0
    )
    lr_warmup_frac: float = fraction(
        0.05, "LR_WARMUP_FRAC LR_WARMUP_FRACTION --lr-warmup-fraction", "warm-up as a fraction of the decay"
    )
    lr_warmup_iters: int = in_steps(
        0, "LR_WARMUP_ITERS --lr-warmup-iters", "warm-up steps; 0: LR_WARMUP_FRAC of the decay"
    )
    lr_warmup_samples: int = setting(
        0, "LR_WARMUP_SAMPLES --lr-warmup-samples", "warm-up in samples", unit="samples", ge=0
    )
    lr_warmup_tokens: int = setting(0, "LR_WARMUP_TOKENS --lr-warmup-tokens", "warm-up in tokens", unit="tokens", ge=0)
    lr_decay_iters: int = in_steps(0, "LR_DECAY_ITERS --lr-decay-iters", "decay ends here; 0: TRAIN_ITERS")
    lr_decay_samples: int = setting(
        0, "LR_DECAY_SAMPLES --lr-decay-samples", "the same, in samples", unit="samples", ge=0
    )
    lr_decay_tokens: int = setting(0, "LR_DECAY_TOKENS --lr-decay-tokens", "the same, in tokens", unit="tokens", ge=0)
    lr_cooldown_frac: float = fraction(
        0.0,
        "COOLDOWN LR_COOLDOWN_FRAC LR_COOLDOWN_FRACTION --lr_constant_plus_cooldown_frac --lr-cooldown-fraction",
        "the fraction of the decay that cools, wsd and infinite-*; 0: 0.05 of wsd, 0.65 of infinite-*",
    )
    lr_cooldown_iters: int = in_steps(
        0, "LR_COOLDOWN_ITERS LR_WSD_DECAY_ITERS --lr-wsd-decay-iters", "the same, in steps"
    )
    lr_cooldown_samples: int = setting(
        0,
        "LR_COOLDOWN_SAMPLES LR_WSD_DECAY_SAMPLES --lr-wsd-decay-samples",
        "the same, in samples",
        unit="samples",
        ge=0,
    )
    lr_cooldown_tokens: int = setting(0, "LR_COOLDOWN_TOKENS", "the same, in tokens", unit="tokens", ge=0)
    lr_cooldown_style: CooldownStyle = setting(
        "sqrt",
        "LR_COOLDOWN_STYLE LR_WSD_DECAY_STYLE --lr-wsd-decay-style",
        "shape of wsd's cool-down; sqrt: 1 - sqrt(x), exponential: 2 ** (1 - x) - 1",
        synonyms={"minus_sqrt": "sqrt"},
    )
    lr_constant: float = setting(
        0.0, "LR_CONSTANT --constant-lr", "learning rate of infinite-* between its two falls; 0: 0.55 LR", ge=0
    )
    lr_constant_frac: float = fraction(
        0.001,
        "LR_CONSTANT_FRAC LR_CONSTANT_FRACTION --lr-constant-fraction",
        "the fraction of the decay at LR_CONSTANT, infinite-*",
    )
    lr_constant_iters: int = in_steps(0, "LR_CONSTANT_ITERS", "the same, in steps")
    lr_constant_samples: int = setting(0, "LR_CONSTANT_SAMPLES", "the same, in samples", unit="samples", ge=0)
    lr_constant_tokens: int = setting(0, "LR_CONSTANT_TOKENS", "the same, in tokens", unit="tokens", ge=0)
    lr_timescale: float = setting(10.0, "LR_TIMESCALE", "how fast infinite-inverse-square-root falls at first", gt=0)
    weight_decay: float = setting(
        0.1, "WEIGHT_DECAY --weight-decay", "not on biases and norms; decoupled, but for adam and sgd", ge=0
    )
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = setting(
        "constant",
        "WEIGHT_DECAY_INCR_STYLE --weight-decay-incr-style",
        "how the weight decay goes from START_WEIGHT_DECAY to END_WEIGHT_DECAY",
    )
    start_weight_decay: float = setting(
        AS_WEIGHT_DECAY,
        "START_WEIGHT_DECAY --start-weight-decay",
        "weight decay of the first step, unless the style is constant; -1: WEIGHT_DECAY",
        ge=AS_WEIGHT_DECAY,
    )
    end_weight_decay: float = setting(
        AS_WEIGHT_DECAY,
        "END_WEIGHT_DECAY --end-weight-decay",
        "weight decay at the end, unless the style is constant; -1: WEIGHT_DECAY",
        ge=AS_WEIGHT_DECAY,
    )
    weight_decay_iters: int = in_steps(0, "WEIGHT_DECAY_ITERS", "END_WEIGHT_DECAY is reached here; 0: TRAIN_ITERS")
    weight_decay_samples: int = setting(0, "WEIGHT_DECAY_SAMPLES", "the same, in samples", unit="samples", ge=0)
    weight_decay_tokens: int = setting(0, "WEIGHT_DECAY_TOKENS", "the same, in tokens", unit="tokens", ge=0)


class LrFinderConfig(Section):
    """A sweep of the learning rate instead of a training run."""

    enabled: bool = setting(
        False,
        "LR_FINDER --lr-finder",
        "try learning rates from small to large for some steps, and suggest one; trains and saves nothing",
    )
    lowest: float = setting(1e-6, "LR_FINDER_MIN", "learning rate of the first step", gt=0)
    highest: float = setting(1.0, "LR_FINDER_MAX", "learning rate of the last step", gt=0)
    iters: int = in_steps(0, "LR_FINDER_ITERS", "steps; 0: 100, or a tenth of TRAIN_ITERS if more")
    smoothing: float = fraction(0.98, "LR_FINDER_SMOOTHING", "weight of the earlier steps in the smoothed loss")
