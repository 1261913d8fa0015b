"""Settings of the optimizer and of the loss scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from megads.config.optimizers import OPTIMIZERS
from megads.config.setting import Word, exponent_of_two, fraction, setting
from megads.config.settings.schedule import ScheduleSettings

if TYPE_CHECKING:
    OptimizerName = str
else:
    OptimizerName = Literal[tuple(OPTIMIZERS)]
"""The rows of ``megads.config.optimizers``."""


class OptimConfig(ScheduleSettings):
    """Optimizer, learning-rate schedule and loss scale."""

    optimizer: OptimizerName = setting(
        "adamw",
        "OPT OPTIMIZER OPTIM",
        "how weights follow from gradients; megads optimizers lists them",
        flags={"--optimizer": Word({"adam": "adamw"})},
    )
    adam_beta1: float = fraction(0.9, "ADAM_BETA1 --adam-beta1", "decay of the first moment")
    adam_beta2: float = fraction(0.95, "ADAM_BETA2 --adam-beta2", "decay of the second moment")
    adam_eps: float = setting(1e-5, "ADAM_EPS --adam-eps", "added to the root of the second moment", gt=0)
    sgd_momentum: float = fraction(0.9, "SGD_MOMENTUM --sgd-momentum", "sgd: decay of the momentum")
    lion_beta1: float = fraction(0.9, "LION_BETA1", "lion: share of the momentum in the update")
    lion_beta2: float = fraction(0.99, "LION_BETA2", "lion: decay of the momentum")
    sophia_beta1: float = fraction(0.965, "SOPHIA_BETA1", "sophiag: decay of the momentum")
    sophia_beta2: float = fraction(0.99, "SOPHIA_BETA2", "sophiag: decay of the Hessian")
    sophia_rho: float = setting(
        0.04, "SOPHIA_RHO", "sophiag: momentum over rho times the Hessian is clipped at 1", gt=0
    )
    sophia_interval: int = setting(
        10, "SOPHIA_INTERVAL", "sophiag: steps between estimates of the Hessian", unit="steps", gt=0
    )
    muon_momentum: float = fraction(0.95, "MUON_MOMENTUM", "muon: decay of the momentum")
    muon_ns_steps: int = setting(5, "MUON_NS_STEPS", "muon: steps of the Newton-Schulz iteration", gt=0, lt=100)
    muon_adjust_lr: Literal["match_rms_adamw", "original"] = setting(
        "match_rms_adamw",
        "MUON_ADJUST_LR",
        "muon: updates as large as AdamW's, so that LR means the same (arXiv 2502.16982), or as first published",
    )
    shampoo_interval: int = setting(10, "SHAMPOO_INTERVAL", "shampoo: steps between inverse roots", unit="steps", gt=0)
    shampoo_eps: float = setting(1e-6, "SHAMPOO_EPS", "shampoo: added to the preconditioners", gt=0)
    shampoo_momentum: float = fraction(0.0, "SHAMPOO_MOMENTUM", "shampoo: decay of the momentum")
    soap_interval: int = setting(10, "SOAP_INTERVAL", "soap: steps between eigenbases", unit="steps", gt=0)
    soap_max_dim: int = setting(10_000, "SOAP_MAX_DIM", "soap: longer sides keep their own basis", gt=0)
    galore_rank: int = setting(128, "GALORE_RANK", "galore: rank of the projection", gt=0)
    galore_interval: int = setting(200, "GALORE_INTERVAL", "galore: steps between projections", unit="steps", gt=0)
    galore_scale: float = setting(0.25, "GALORE_SCALE", "galore: factor of projected updates", gt=0)
    galore_proj: Literal["std", "reverse_std", "left", "right"] = setting(
        "std", "GALORE_PROJ", "galore: which side is projected; std: the shorter one"
    )
    clip_grad: float = setting(1.0, "CLIP_GRAD --clip-grad", "largest global gradient norm; 0: no clipping", ge=0)
    loss_scale: float = setting(0.0, "LOSS_SCALE --loss-scale", "fp16 only; 0: dynamic", ge=0)
    initial_loss_scale_power: int = setting(
        16,
        "INITIAL_LOSS_SCALE_POWER",
        "fp16: first scale is 2**this",
        flags={"--initial-loss-scale": Word(convert=exponent_of_two)},
        ge=0,
        le=32,
    )
    loss_scale_window: int = setting(
        1000, "LOSS_SCALE_WINDOW --loss-scale-window", "fp16: good steps before the scale doubles", gt=0
    )
    loss_scale_hysteresis: int = setting(
        2, "LOSS_SCALE_HYSTERESIS --hysteresis", "fp16: bad steps before the scale halves", gt=0
    )
    min_loss_scale: int = setting(1, "MIN_LOSS_SCALE --min-loss-scale", "fp16: smallest scale", gt=0)
