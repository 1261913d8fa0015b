"""Settings of the optimizer and of the loss scale."""

from __future__ import annotations

from typing import Literal

from megads.config.schedule_settings import ScheduleSettings
from megads.config.setting import setting


class OptimConfig(ScheduleSettings):
    """Optimizer, learning-rate schedule and loss scale."""

    optimizer: Literal["adamw"] = setting("adamw", env="OPT", aliases=("OPTIMIZER", "OPTIM"), help="optimizer")
    adam_beta1: float = setting(0.9, env="ADAM_BETA1", help="decay of the first moment", ge=0, lt=1)
    adam_beta2: float = setting(0.95, env="ADAM_BETA2", help="decay of the second moment", ge=0, lt=1)
    adam_eps: float = setting(1e-5, env="ADAM_EPS", help="added to the root of the second moment", gt=0)
    clip_grad: float = setting(1.0, env="CLIP_GRAD", help="largest global gradient norm; 0: no clipping", ge=0)
    loss_scale: float = setting(0.0, env="LOSS_SCALE", help="fp16 only; 0: dynamic", ge=0)
    initial_loss_scale_power: int = setting(
        16, env="INITIAL_LOSS_SCALE_POWER", help="fp16: first scale is 2**this", ge=0, le=32
    )
    loss_scale_window: int = setting(
        1000, env="LOSS_SCALE_WINDOW", help="fp16: good steps before the scale doubles", gt=0
    )
    loss_scale_hysteresis: int = setting(
        2, env="LOSS_SCALE_HYSTERESIS", help="fp16: bad steps before the scale halves", gt=0
    )
    min_loss_scale: int = setting(1, env="MIN_LOSS_SCALE", help="fp16: smallest scale", gt=0)
