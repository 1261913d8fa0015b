"""Settings of the optimizer and of the loss scale."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Word, setting
from megads.config.settings.option_units import exponent_of_two
from megads.config.settings.schedule import ScheduleSettings

OptimizerName = Literal[
    "adamw",
    "adam",
    "adam8bit",
    "adamwschedulefree",
    "sgd",
    "sgdschedulefree",
    "sophiag",
    "lion",
    "adopt",
    "lamb",
    "muon",
    "shampoo",
    "soap",
    "galoreadamw",
    "galoreadamw8bit",
    "galoreadamw8bitperlayer",
    "ds.adamw",
    "ds.fusedlamb",
    "ds.onebitlamb",
    "apex.adam",
    "apex.sgd",
    "ipex.lamb",
    "ipex.fusedlamb",
]
"""The rows of ``megads.config.optimizers``."""


class OptimConfig(ScheduleSettings):
    """Optimizer, learning-rate schedule and loss scale."""

    optimizer: OptimizerName = setting(
        "adamw",
        env="OPT",
        aliases=("OPTIMIZER", "OPTIM"),
        flags={"--optimizer": Word({"adam": "adamw"})},
        help="how weights follow from gradients; megads optimizers lists them",
    )
    adam_beta1: float = setting(
        0.9, env="ADAM_BETA1", flags={"--adam-beta1": None}, help="decay of the first moment", ge=0, lt=1
    )
    adam_beta2: float = setting(
        0.95, env="ADAM_BETA2", flags={"--adam-beta2": None}, help="decay of the second moment", ge=0, lt=1
    )
    adam_eps: float = setting(
        1e-5, env="ADAM_EPS", flags={"--adam-eps": None}, help="added to the root of the second moment", gt=0
    )
    sgd_momentum: float = setting(
        0.9, env="SGD_MOMENTUM", flags={"--sgd-momentum": None}, help="sgd: decay of the momentum", ge=0, lt=1
    )
    lion_beta1: float = setting(0.9, env="LION_BETA1", help="lion: share of the momentum in the update", ge=0, lt=1)
    lion_beta2: float = setting(0.99, env="LION_BETA2", help="lion: decay of the momentum", ge=0, lt=1)
    sophia_beta1: float = setting(0.965, env="SOPHIA_BETA1", help="sophiag: decay of the momentum", ge=0, lt=1)
    sophia_beta2: float = setting(0.99, env="SOPHIA_BETA2", help="sophiag: decay of the Hessian", ge=0, lt=1)
    sophia_rho: float = setting(
        0.04, env="SOPHIA_RHO", help="sophiag: momentum over rho times the Hessian is clipped at 1", gt=0
    )
    sophia_interval: int = setting(
        10, env="SOPHIA_INTERVAL", help="sophiag: steps between estimates of the Hessian", unit="steps", gt=0
    )
    muon_momentum: float = setting(0.95, env="MUON_MOMENTUM", help="muon: decay of the momentum", ge=0, lt=1)
    muon_ns_steps: int = setting(
        5, env="MUON_NS_STEPS", help="muon: steps of the Newton-Schulz iteration", gt=0, lt=100
    )
    muon_adjust_lr: Literal["match_rms_adamw", "original"] = setting(
        "match_rms_adamw",
        env="MUON_ADJUST_LR",
        help="muon: updates as large as AdamW's, so that LR means the same (arXiv 2502.16982), or as first published",
    )
    shampoo_interval: int = setting(
        10, env="SHAMPOO_INTERVAL", help="shampoo: steps between inverse roots", unit="steps", gt=0
    )
    shampoo_eps: float = setting(1e-6, env="SHAMPOO_EPS", help="shampoo: added to the preconditioners", gt=0)
    shampoo_momentum: float = setting(0.0, env="SHAMPOO_MOMENTUM", help="shampoo: decay of the momentum", ge=0, lt=1)
    soap_interval: int = setting(10, env="SOAP_INTERVAL", help="soap: steps between eigenbases", unit="steps", gt=0)
    soap_max_dim: int = setting(10_000, env="SOAP_MAX_DIM", help="soap: longer sides keep their own basis", gt=0)
    galore_rank: int = setting(128, env="GALORE_RANK", help="galore: rank of the projection", gt=0)
    galore_interval: int = setting(
        200, env="GALORE_INTERVAL", help="galore: steps between projections", unit="steps", gt=0
    )
    galore_scale: float = setting(0.25, env="GALORE_SCALE", help="galore: factor of projected updates", gt=0)
    galore_proj: Literal["std", "reverse_std", "left", "right"] = setting(
        "std", env="GALORE_PROJ", help="galore: which side is projected; std: the shorter one"
    )
    clip_grad: float = setting(
        1.0, env="CLIP_GRAD", flags={"--clip-grad": None}, help="largest global gradient norm; 0: no clipping", ge=0
    )
    loss_scale: float = setting(0.0, env="LOSS_SCALE", flags={"--loss-scale": None}, help="fp16 only; 0: dynamic", ge=0)
    initial_loss_scale_power: int = setting(
        16,
        env="INITIAL_LOSS_SCALE_POWER",
        flags={"--initial-loss-scale": Word(convert=exponent_of_two)},
        help="fp16: first scale is 2**this",
        ge=0,
        le=32,
    )
    loss_scale_window: int = setting(
        1000,
        env="LOSS_SCALE_WINDOW",
        flags={"--loss-scale-window": None},
        help="fp16: good steps before the scale doubles",
        gt=0,
    )
    loss_scale_hysteresis: int = setting(
        2,
        env="LOSS_SCALE_HYSTERESIS",
        flags={"--hysteresis": None},
        help="fp16: bad steps before the scale halves",
        gt=0,
    )
    min_loss_scale: int = setting(
        1, env="MIN_LOSS_SCALE", flags={"--min-loss-scale": None}, help="fp16: smallest scale", gt=0
    )
