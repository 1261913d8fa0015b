"""Settings of what a run tells, and to whom."""

from __future__ import annotations

import re
from typing import Literal

from megads.config.setting import Decides, Section, Word, setting

WANDB_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
"""What a run may be known by at Weights & Biases."""


class LogConfig(Section):
    """What a run reports."""

    log_interval: int = setting(
        1,
        env="LOG_INTERVAL",
        flags={"--log-interval": None},
        help="steps between log lines and rows of metrics.jsonl",
        unit="steps",
        gt=0,
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", env="LOG_LEVEL", flags={"--log-level": Word({"critical": "error"})}, help="of rank 0"
    )
    log_line: Literal["megads", "megatron"] = setting(
        "megads", env="LOG_LINE", help="format of step lines on the console; the run's log file has both"
    )
    params_norm: bool = setting(
        False,
        env="LOG_PARAMS_NORM",
        flags={"--log-params-norm": True},
        help="the norm of all weights after every step",
    )
    num_zeros: bool = setting(
        False,
        env="LOG_NUM_ZEROS_IN_GRAD",
        flags={"--log-num-zeros-in-grad": True},
        help="count the zero elements of every step's gradient",
    )


class TrackConfig(Section):
    """Who else keeps the rows of metrics.jsonl."""

    tensorboard: Literal["auto", "on", "off"] = setting(
        "auto",
        env="TENSORBOARD",
        switches={"NO_TENSORBOARD": "off"},
        help="event files for TensorBoard; auto: if TENSORBOARD_DIR is given",
    )
    tensorboard_dir: str = setting(
        "", env="TENSORBOARD_DIR", flags={"--tensorboard-dir": None}, help="empty: <run>/tensorboard"
    )
    tensorboard_queue_size: int = setting(
        1000,
        env="TENSORBOARD_QUEUE_SIZE",
        flags={"--tensorboard-queue-size": None},
        help="events that may wait for the disk",
        gt=0,
    )
    tensorboard_log_interval: int = setting(
        1,
        env="TENSORBOARD_LOG_INTERVAL",
        flags={"--tensorboard-log-interval": None},
        help="steps between points of TensorBoard, independent of LOG_INTERVAL",
        unit="steps",
        gt=0,
    )
    log_timers: bool = setting(
        False,
        env="LOG_TIMERS_TO_TENSORBOARD",
        flags={"--log-timers-to-tensorboard": True},
        help="iteration-time and the parts of a step",
    )
    log_batch_size: bool = setting(
        False,
        env="LOG_BATCH_SIZE_TO_TENSORBOARD",
        flags={"--log-batch-size-to-tensorboard": True},
        help="batch-size",
    )
    log_validation_ppl: bool = setting(
        False,
        env="LOG_VALIDATION_PPL_TO_TENSORBOARD",
        flags={"--log-validation-ppl-to-tensorboard": True},
        help="perplexity of validations",
    )
    log_memory: bool = setting(
        False, env="LOG_MEMORY_TO_TENSORBOARD", flags={"--log-memory-to-tensorboard": True}, help="memory of rank 0"
    )
    log_world_size: bool = setting(
        False, env="LOG_WORLD_SIZE_TO_TENSORBOARD", flags={"--log-world-size-to-tensorboard": True}, help="ranks"
    )
    log_learning_rate: bool = setting(
        True,
        env="LOG_LEARNING_RATE_TO_TENSORBOARD",
        # The older toolkits' own spelling first.
        flags={"--no-log-learnig-rate-to-tensorboard": False, "--no-log-learning-rate-to-tensorboard": False},
        help="learning-rate",
    )
    log_loss_scale: bool = setting(
        True,
        env="LOG_LOSS_SCALE_TO_TENSORBOARD",
        flags={"--no-log-loss-scale-to-tensorboard": False},
        help="loss-scale",
    )
    csv: bool = setting(False, env="METRICS_CSV", help="also write <run>/metrics.csv")
    wandb_mode: Literal["auto", "online", "offline", "disabled"] = setting(
        "auto",
        env="WANDB_MODE",
        switches={"WANDB_DISABLED": Decides("disabled")},
        help="Weights & Biases; auto: online if WANDB_PROJECT or WANDB_API_KEY is given",
    )
    wandb_project: str = setting(
        "",
        env="WANDB_PROJECT",
        aliases=("WB_PROJECT",),
        flags={"--wandb-project": None},
        help="empty: megads",
    )
    wandb_entity: str = setting(
        "", env="WANDB_ENTITY", flags={"--wandb-entity": None}, help="user or team; empty: the key's own"
    )
    wandb_group: str = setting("", env="WANDB_RUN_GROUP", help="of runs that belong together")
    wandb_name: str = setting("", env="WANDB_NAME", flags={"--wandb-exp-name": None}, help="empty: the run's name")
    wandb_id: str = setting(
        "",
        env="WANDB_RUN_ID",
        flags={"--wandb-id": None},
        help="id of the run that a new run continues; empty: a new one. A resumed run continues its own",
    )
    wandb_timeout_s: float = setting(
        30.0,
        env="WANDB_INIT_TIMEOUT",
        help="seconds to wait for the server; after that the run is kept offline",
        unit="s",
        gt=0,
        le=3600,
    )
    energy: bool = setting(
        False,
        env="ENERGY",
        flags={"--codecarbon-dir": True},
        help="measure energy by codecarbon; CODECARBON_DIR asks for it too",
    )
    codecarbon_dir: str = setting(
        "", env="CODECARBON_DIR", flags={"--codecarbon-dir": None}, help="for emissions-RRR.csv; empty: <run>/energy"
    )
    energy_country: str = setting(
        "", env="ENERGY_COUNTRY", help="country of the machine, e.g. USA or FRA, for CO2; empty: no CO2"
    )
