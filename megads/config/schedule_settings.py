"""Settings of the learning rate and the weight decay over a run."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, setting


class ScheduleSettings(Section):
    """How learning rate and weight decay change while a run goes on; a part of ``optim``."""

    lr: float = setting(2e-4, env="LR", help="peak learning rate", ge=0)
    min_lr: float = setting(0.0, env="MIN_LR", help="learning rate at the end of the decay", ge=0)
    lr_decay_style: Literal["cosine", "linear", "constant"] = setting(
        "cosine", env="LR_DECAY_STYLE", help="shape of the decay"
    )
    lr_warmup_frac: float = setting(
        0.05,
        env="LR_WARMUP_FRAC",
        aliases=("LR_WARMUP_FRACTION",),
        help="warm-up as a fraction of the decay steps",
        ge=0,
        lt=1,
    )
    lr_warmup_iters: int = setting(
        0, env="LR_WARMUP_ITERS", help="warm-up steps; 0: LR_WARMUP_FRAC of the decay steps", unit="steps", ge=0
    )
    lr_decay_iters: int = setting(0, env="LR_DECAY_ITERS", help="decay ends here; 0: TRAIN_ITERS", unit="steps", ge=0)
    weight_decay: float = setting(0.1, env="WEIGHT_DECAY", help="decoupled, not on biases and norms", ge=0)
