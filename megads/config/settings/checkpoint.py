"""Settings of checkpoints: when and where the state of a run is kept, and what it starts from."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, setting


class CheckpointConfig(Section):
    """When and where the state of a run is kept, and what a new run starts from."""

    dir: str = setting(
        "",
        env="CKPT_DIR",
        aliases=("SAVE",),
        flags={"--save": None},
        help="folder of checkpoints; empty: <run>/checkpoints",
    )
    save_interval: int = setting(
        50,
        env="SAVE_INTERVAL",
        flags={"--save-interval": None},
        help="steps between checkpoints; 0: only at the end",
        unit="steps",
        ge=0,
    )
    keep: int = setting(0, env="CKPT_KEEP", aliases=("KEEP_LAST",), help="newest checkpoints to keep; 0: all", ge=0)
    keep_every: int = setting(
        0,
        env="CKPT_KEEP_EVERY",
        aliases=("KEEP_EVERY",),
        help="checkpoints of multiples of this iteration are kept forever; 0: none",
        unit="steps",
        ge=0,
    )
    in_background: bool = setting(
        False,
        env="SAVE_IN_BACKGROUND",
        aliases=("ASYNC_SAVE",),
        flags={"--async-save": True},
        help="save in the background: training continues while a copy of the state in host memory is written",
    )
    failed_saves: int = setting(
        2, env="MAX_FAILED_SAVES", help="saves in a row that may fail before the run ends; the final one may not", ge=0
    )
    load: str = setting(
        "",
        env="LOAD",
        flags={"--load": None},
        help="run, folder of checkpoints or checkpoint to start from if the run has no checkpoint yet",
    )
    step: int = setting(
        0,
        env="CKPT_STEP",
        flags={"--ckpt-step": None},
        help="iteration of the checkpoint to resume from; 0: the newest",
        unit="steps",
        ge=0,
    )
    finetune: bool = setting(
        False,
        env="FINETUNE",
        flags={"--finetune": True},
        help="take only the weights of LOAD and start at iteration 0",
    )
    use_args: bool = setting(
        False,
        env="USE_CHECKPOINT_ARGS",
        flags={"--use-checkpoint-args": True},
        help="take the model's shape and tokenizer from LOAD, not from the preset",
    )
    load_optim: bool = setting(
        True,
        env="LOAD_OPTIM",
        switches={"NO_LOAD_OPTIM": False},
        flags={"--no-load-optim": False},
        help="load the optimizer state",
    )
    load_rng: bool = setting(
        True,
        env="LOAD_RNG",
        switches={"NO_LOAD_RNG": False},
        flags={"--no-load-rng": False},
        help="has no effect: dropout follows from the seed and the position, and no generator has a state to load",
    )
    save_optim: bool = setting(
        True,
        env="SAVE_OPTIM",
        switches={"NO_SAVE_OPTIM": False},
        flags={"--no-save-optim": False},
        help="save the optimizer state; without it a run cannot be resumed exactly",
    )
    save_rng: bool = setting(
        True,
        env="SAVE_RNG",
        switches={"NO_SAVE_RNG": False},
        flags={"--no-save-rng": False},
        help="has no effect: dropout follows from the seed and the position, and no generator has a state to save",
    )
    schedule: Literal["override", "keep"] = setting(
        "override",
        env="SCHEDULE_ON_RESUME",
        switches={"OVERRIDE_CKPT_OPT_PARAM": "override"},
        flags={
            "--override-opt_param-scheduler": "override",
            "--override-lr-scheduler": "override",
            "--use-checkpoint-opt_param-scheduler": "keep",
            "--use-checkpoint-lr-scheduler": "keep",
        },
        help="learning rate and its schedule on resume: the current settings, or the checkpoint's",
    )
