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
        help="checkpoints of multiples of this iteration stay forever; 0: none",
        unit="steps",
        ge=0,
    )
    in_background: bool = setting(
        False,
        env="SAVE_IN_BACKGROUND",
        aliases=("ASYNC_SAVE",),
        flags={"--async-save": True},
        help="training goes on while a copy of the state in the host's memory is written",
    )
    failed_saves: int = setting(
        2, env="MAX_FAILED_SAVES", help="saves in a row that may fail while the run goes on; not the last one", ge=0
    )
    load: str = setting(
        "",
        env="LOAD",
        flags={"--load": None},
        help="run, folder of checkpoints or checkpoint to start from while the run has none of its own",
    )
    step: int = setting(
        0,
        env="CKPT_STEP",
        flags={"--ckpt-step": None},
        help="iteration of the checkpoint to go on from; 0: the newest",
        unit="steps",
        ge=0,
    )
    finetune: bool = setting(
        False,
        env="FINETUNE",
        flags={"--finetune": True},
        help="of LOAD take the weights only and begin at iteration 0",
    )
    use_args: bool = setting(
        False,
        env="USE_CHECKPOINT_ARGS",
        flags={"--use-checkpoint-args": True},
        help="the model's shape and tokenizer are those of LOAD, whatever the preset says",
    )
    load_optim: bool = setting(
        True,
        env="LOAD_OPTIM",
        switches={"NO_LOAD_OPTIM": False},
        flags={"--no-load-optim": False},
        help="take the optimizer's state from the checkpoint",
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
        help="save the optimizer's state; without it a run can not be resumed exactly",
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
        help="learning rate and its schedule on resume: what is set now, or what the checkpoint had",
    )
