"""Settings of the learning rate and the weight decay over a run.

A length may be given in steps, samples or tokens; ``megads.config.schedule.rates`` turns each into
samples, which is what the schedule counts.
"""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, setting

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

    lr: float = setting(2e-4, env="LR", flags={"--lr": None}, help="peak learning rate", ge=0)
    min_lr: float = setting(
        0.0, env="MIN_LR", flags={"--min-lr": None}, help="learning rate at the end of the decay", ge=0
    )
    lr_decay_style: Style = setting(
        "cosine",
        env="LR_DECAY_STYLE",
        flags={"--lr-decay-style": None, "--lr_constant_plus_cooldown": "wsd"},
        synonyms={"infinite-inv-square-root": "infinite-inverse-square-root"},
        help="shape of the decay; wsd: warm-up, constant, and a cool-down at the end",
    )
    lr_warmup_init: float = setting(
        0.0,
        env="LR_WARMUP_INIT",
        flags={"--lr-warmup-init": None},
        help="learning rate of the first step of a warm-up",
        ge=0,
    )
    lr_warmup_frac: float = setting(
        0.05,
        env="LR_WARMUP_FRAC",
        aliases=("LR_WARMUP_FRACTION",),
        flags={"--lr-warmup-fraction": None},
        help="warm-up as a fraction of the decay",
        ge=0,
        lt=1,
    )
    lr_warmup_iters: int = setting(
        0,
        env="LR_WARMUP_ITERS",
        flags={"--lr-warmup-iters": None},
        help="warm-up steps; 0: LR_WARMUP_FRAC of the decay",
        unit="steps",
        ge=0,
    )
    lr_warmup_samples: int = setting(
        0,
        env="LR_WARMUP_SAMPLES",
        flags={"--lr-warmup-samples": None},
        help="warm-up in samples",
        unit="samples",
        ge=0,
    )
    lr_warmup_tokens: int = setting(
        0, env="LR_WARMUP_TOKENS", flags={"--lr-warmup-tokens": None}, help="warm-up in tokens", unit="tokens", ge=0
    )
    lr_decay_iters: int = setting(
        0,
        env="LR_DECAY_ITERS",
        flags={"--lr-decay-iters": None},
        help="decay ends here; 0: TRAIN_ITERS",
        unit="steps",
        ge=0,
    )
    lr_decay_samples: int = setting(
        0,
        env="LR_DECAY_SAMPLES",
        flags={"--lr-decay-samples": None},
        help="the same, in samples",
        unit="samples",
        ge=0,
    )
    lr_decay_tokens: int = setting(
        0, env="LR_DECAY_TOKENS", flags={"--lr-decay-tokens": None}, help="the same, in tokens", unit="tokens", ge=0
    )
    lr_cooldown_frac: float = setting(
        0.0,
        env="COOLDOWN",
        aliases=("LR_COOLDOWN_FRAC", "LR_COOLDOWN_FRACTION"),
        flags={"--lr_constant_plus_cooldown_frac": None, "--lr-cooldown-fraction": None},
        help="the fraction of the decay that cools, wsd and infinite-*; 0: 0.05 of wsd, 0.65 of infinite-*",
        ge=0,
        lt=1,
    )
    lr_cooldown_iters: int = setting(
        0,
        env="LR_COOLDOWN_ITERS",
        aliases=("LR_WSD_DECAY_ITERS",),
        flags={"--lr-wsd-decay-iters": None},
        help="the same, in steps",
        unit="steps",
        ge=0,
    )
    lr_cooldown_samples: int = setting(
        0,
        env="LR_COOLDOWN_SAMPLES",
        aliases=("LR_WSD_DECAY_SAMPLES",),
        flags={"--lr-wsd-decay-samples": None},
        help="the same, in samples",
        unit="samples",
        ge=0,
    )
    lr_cooldown_tokens: int = setting(0, env="LR_COOLDOWN_TOKENS", help="the same, in tokens", unit="tokens", ge=0)
    lr_cooldown_style: CooldownStyle = setting(
        "sqrt",
        env="LR_COOLDOWN_STYLE",
        aliases=("LR_WSD_DECAY_STYLE",),
        flags={"--lr-wsd-decay-style": None},
        synonyms={"minus_sqrt": "sqrt"},
        help="shape of wsd's cool-down; sqrt: 1 - sqrt(x), exponential: 2 ** (1 - x) - 1",
    )
    lr_constant: float = setting(
        0.0,
        env="LR_CONSTANT",
        flags={"--constant-lr": None},
        help="learning rate of infinite-* between its two falls; 0: 0.55 LR",
        ge=0,
    )
    lr_constant_frac: float = setting(
        0.001,
        env="LR_CONSTANT_FRAC",
        aliases=("LR_CONSTANT_FRACTION",),
        flags={"--lr-constant-fraction": None},
        help="the fraction of the decay at LR_CONSTANT, infinite-*",
        ge=0,
        lt=1,
    )
    lr_constant_iters: int = setting(0, env="LR_CONSTANT_ITERS", help="the same, in steps", unit="steps", ge=0)
    lr_constant_samples: int = setting(0, env="LR_CONSTANT_SAMPLES", help="the same, in samples", unit="samples", ge=0)
    lr_constant_tokens: int = setting(0, env="LR_CONSTANT_TOKENS", help="the same, in tokens", unit="tokens", ge=0)
    lr_timescale: float = setting(
        10.0, env="LR_TIMESCALE", help="how fast infinite-inverse-square-root falls at first", gt=0
    )
    weight_decay: float = setting(
        0.1,
        env="WEIGHT_DECAY",
        flags={"--weight-decay": None},
        help="not on biases and norms; decoupled, but for adam and sgd",
        ge=0,
    )
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = setting(
        "constant",
        env="WEIGHT_DECAY_INCR_STYLE",
        flags={"--weight-decay-incr-style": None},
        help="how the weight decay goes from START_WEIGHT_DECAY to END_WEIGHT_DECAY",
    )
    start_weight_decay: float = setting(
        AS_WEIGHT_DECAY,
        env="START_WEIGHT_DECAY",
        flags={"--start-weight-decay": None},
        help="weight decay of the first step, unless the style is constant; -1: WEIGHT_DECAY",
        ge=AS_WEIGHT_DECAY,
    )
    end_weight_decay: float = setting(
        AS_WEIGHT_DECAY,
        env="END_WEIGHT_DECAY",
        flags={"--end-weight-decay": None},
        help="weight decay at the end, unless the style is constant; -1: WEIGHT_DECAY",
        ge=AS_WEIGHT_DECAY,
    )
    weight_decay_iters: int = setting(
        0, env="WEIGHT_DECAY_ITERS", help="END_WEIGHT_DECAY is reached here; 0: TRAIN_ITERS", unit="steps", ge=0
    )
    weight_decay_samples: int = setting(
        0, env="WEIGHT_DECAY_SAMPLES", help="the same, in samples", unit="samples", ge=0
    )
    weight_decay_tokens: int = setting(0, env="WEIGHT_DECAY_TOKENS", help="the same, in tokens", unit="tokens", ge=0)


class LrFinderConfig(Section):
    """A sweep of the learning rate instead of a training run."""

    enabled: bool = setting(
        False,
        env="LR_FINDER",
        flags={"--lr-finder": True},
        help="try learning rates from small to large for some steps, and suggest one; trains and saves nothing",
    )
    lowest: float = setting(1e-6, env="LR_FINDER_MIN", help="learning rate of the first step", gt=0)
    highest: float = setting(1.0, env="LR_FINDER_MAX", help="learning rate of the last step", gt=0)
    iters: int = setting(
        0, env="LR_FINDER_ITERS", help="steps; 0: 100, or a tenth of TRAIN_ITERS if more", unit="steps", ge=0
    )
    smoothing: float = setting(
        0.98, env="LR_FINDER_SMOOTHING", help="weight of the earlier steps in the smoothed loss", ge=0, lt=1
    )
