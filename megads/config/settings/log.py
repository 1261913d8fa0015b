"""Settings of what a run reports, and to whom."""

from __future__ import annotations

import re
from typing import Literal

from megads.config.setting import Decides, Section, Word, in_steps, setting

WANDB_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
"""What a run may be known by at Weights & Biases."""


class LogConfig(Section):
    """What a run reports."""

    log_interval: int = setting(
        1, "LOG_INTERVAL --log-interval", "steps between log lines and rows of metrics.jsonl", unit="steps", gt=0
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "LOG_LEVEL", "of rank 0", flags={"--log-level": Word({"critical": "error"})}
    )
    log_line: Literal["megads", "megatron"] = setting(
        "megads", "LOG_LINE", "format of step lines on the console; the run's log file has both"
    )
    params_norm: bool = setting(False, "LOG_PARAMS_NORM --log-params-norm", "the norm of all weights after every step")
    num_zeros: bool = setting(
        False, "LOG_NUM_ZEROS_IN_GRAD --log-num-zeros-in-grad", "count the zero elements of every step's gradient"
    )


class TimesConfig(Section):
    """What a run reports its steps' time, and of ranks that hold the others up."""

    split: bool = setting(
        True, "TIME_SPLIT", "log what a step's time is spent on: data, forward, backward, communication, ..."
    )
    straggler_interval: int = in_steps(
        100, "STRAGGLER_INTERVAL", "steps between checks for stragglers; 0: never; needs TIME_SPLIT"
    )
    straggler_ratio: float = setting(
        1.2,
        "STRAGGLER_RATIO",
        "a rank that takes this many times the median of its peers is reported as a straggler",
        gt=1,
    )
    anchor: str = setting(
        "",
        "PLAN_ANCHOR",
        "a run folder or a file of megads bench --json, whose measurements correct the predicted step time",
    )


class TrackConfig(Section):
    """Who else keeps the rows of metrics.jsonl."""

    tensorboard: Literal["auto", "on", "off"] = setting(
        "auto",
        "TENSORBOARD",
        "event files for TensorBoard; auto: if TENSORBOARD_DIR is given",
        switches={"NO_TENSORBOARD": "off"},
    )
    tensorboard_dir: str = setting("", "TENSORBOARD_DIR --tensorboard-dir", "empty: <run>/tensorboard")
    tensorboard_queue_size: int = setting(
        1000, "TENSORBOARD_QUEUE_SIZE --tensorboard-queue-size", "events that may wait for the disk", gt=0
    )
    tensorboard_log_interval: int = setting(
        1,
        "TENSORBOARD_LOG_INTERVAL --tensorboard-log-interval",
        "steps between points of TensorBoard, independent of LOG_INTERVAL",
        unit="steps",
        gt=0,
    )
    log_timers: bool = setting(
        False, "LOG_TIMERS_TO_TENSORBOARD --log-timers-to-tensorboard", "iteration-time and the parts of a step"
    )
    log_batch_size: bool = setting(False, "LOG_BATCH_SIZE_TO_TENSORBOARD --log-batch-size-to-tensorboard", "batch-size")
    log_validation_ppl: bool = setting(
        False, "LOG_VALIDATION_PPL_TO_TENSORBOARD --log-validation-ppl-to-tensorboard", "perplexity of validations"
    )
    log_memory: bool = setting(False, "LOG_MEMORY_TO_TENSORBOARD --log-memory-to-tensorboard", "memory of rank 0")
    log_world_size: bool = setting(False, "LOG_WORLD_SIZE_TO_TENSORBOARD --log-world-size-to-tensorboard", "ranks")
    log_learning_rate: bool = setting(
        True,
        # The older toolkits' own spelling first.
        "LOG_LEARNING_RATE_TO_TENSORBOARD --no-log-learnig-rate-to-tensorboard --no-log-learning-rate-to-tensorboard",
        "learning-rate",
    )
    log_loss_scale: bool = setting(
        True, "LOG_LOSS_SCALE_TO_TENSORBOARD --no-log-loss-scale-to-tensorboard", "loss-scale"
    )
    csv: bool = setting(False, "METRICS_CSV", "also write <run>/metrics.csv")
    prometheus_address: str = setting(
        "",
        "PROMETHEUS_ADDRESS",
        "serve metrics for Prometheus on rank 0: a port (this host only) or HOST:PORT; empty: no server",
    )
    prometheus_file: str = setting(
        "", "PROMETHEUS_FILE", "file with metrics for node_exporter's textfile collector, e.g. /var/lib/x/megads.prom"
    )
    otlp_endpoint: str = setting(
        "", "OTLP_ENDPOINT", "collector of OpenTelemetry that takes OTLP over HTTP, e.g. http://HOST:4318"
    )
    wandb_mode: Literal["auto", "online", "offline", "disabled"] = setting(
        "auto",
        "WANDB_MODE",
        "Weights & Biases; auto: online if WANDB_PROJECT or WANDB_API_KEY is given",
        switches={"WANDB_DISABLED": Decides("disabled")},
    )
    wandb_project: str = setting("", "WANDB_PROJECT WB_PROJECT --wandb-project", "empty: megads")
    wandb_entity: str = setting("", "WANDB_ENTITY --wandb-entity", "user or team; empty: the key's own")
    wandb_group: str = setting("", "WANDB_RUN_GROUP", "of runs that belong together")
    wandb_name: str = setting("", "WANDB_NAME --wandb-exp-name", "empty: the run's name")
    wandb_id: str = setting(
        "",
        "WANDB_RUN_ID --wandb-id",
        "id of the run that a new run continues; empty: a new one. A resumed run continues its own",
    )
    wandb_timeout_s: float = setting(
        30.0,
        "WANDB_INIT_TIMEOUT",
        "seconds to wait for the server; after that the run is kept offline",
        unit="s",
        gt=0,
        le=3600,
    )
    energy: bool = setting(
        False, "ENERGY --codecarbon-dir", "measure energy by codecarbon; CODECARBON_DIR asks for it too"
    )
    codecarbon_dir: str = setting("", "CODECARBON_DIR --codecarbon-dir", "for emissions-RRR.csv; empty: <run>/energy")
    energy_country: str = setting(
        "", "ENERGY_COUNTRY", "country of the machine, e.g. USA or FRA, for CO2; empty: no CO2"
    )
