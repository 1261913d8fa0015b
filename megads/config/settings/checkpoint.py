"""Settings of checkpoints: when and where the state of a run is kept, and what it starts from."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import Section, in_steps, setting


class CheckpointConfig(Section):
    """When and where the state of a run is kept, and what a new run starts from."""

    dir: str = setting("", "CKPT_DIR SAVE --save", "folder of checkpoints; empty: <run>/checkpoints")
    save_interval: int = in_steps(50, "SAVE_INTERVAL --save-interval", "steps between checkpoints; 0: only at the end")
    keep: int = setting(0, "CKPT_KEEP KEEP_LAST", "newest checkpoints to keep; 0: all", ge=0)
    keep_every: int = in_steps(
        0, "CKPT_KEEP_EVERY KEEP_EVERY", "checkpoints of multiples of this iteration are kept forever; 0: none"
    )
    in_background: bool = setting(
        False,
        "SAVE_IN_BACKGROUND ASYNC_SAVE --async-save",
        "save in the background: training continues while a copy of the state in host memory is written",
    )
    writers: int = setting(
        8,
        "SAVE_WRITERS",
        "ranks of a host that write their files of a checkpoint at the same time, others wait for their turn; 0: all",
        ge=0,
    )
    failed_saves: int = setting(
        2, "MAX_FAILED_SAVES", "saves in a row that may fail before the run ends; the final one may not", ge=0
    )
    load: str = setting(
        "",
        "LOAD --load --pretrained-checkpoint",
        "run, folder of checkpoints or checkpoint to start from if the run has no checkpoint yet",
    )
    step: int = in_steps(0, "CKPT_STEP --ckpt-step", "iteration of the checkpoint to resume from; 0: the newest")
    finetune: bool = setting(
        False,
        "FINETUNE --finetune",
        "take only the weights of LOAD and start at iteration 0",
        flags={"--pretrained-checkpoint": True},
    )
    allow_changes: str = setting(
        "",
        "ALLOW_CHANGES",
        "conventions of the checkpoint that a resume may change, e.g. rope_theta dtype; replay: also the loss of its "
        "stored batch",
        words=True,
    )
    replay_rows: int = setting(
        4,
        "REPLAY_ROWS",
        "rows of 64 tokens that a checkpoint keeps with their losses, to compare on load; 0: none, nothing is compared",
        ge=0,
        le=16,
    )
    use_args: bool = setting(
        False,
        "USE_CHECKPOINT_ARGS --use-checkpoint-args",
        "take the model's shape and tokenizer from LOAD, not from the preset",
    )
    load_optim: bool = setting(
        True, "LOAD_OPTIM --no-load-optim", "load the optimizer state", switches={"NO_LOAD_OPTIM": False}
    )
    load_rng: bool = setting(
        True,
        "LOAD_RNG --no-load-rng",
        "has no effect: dropout follows from the seed and the position, and no generator has a state to load",
        switches={"NO_LOAD_RNG": False},
    )
    save_optim: bool = setting(
        True,
        "SAVE_OPTIM --no-save-optim",
        "save the optimizer state; without it a run cannot be resumed exactly",
        switches={"NO_SAVE_OPTIM": False},
    )
    save_rng: bool = setting(
        True,
        "SAVE_RNG --no-save-rng",
        "has no effect: dropout follows from the seed and the position, and no generator has a state to save",
        switches={"NO_SAVE_RNG": False},
    )
    schedule: Literal["override", "keep"] = setting(
        "override",
        "SCHEDULE_ON_RESUME",
        "learning rate and its schedule on resume: the current settings, or the checkpoint's",
        switches={"OVERRIDE_CKPT_OPT_PARAM": "override"},
        flags={
            "--override-opt_param-scheduler": "override",
            "--override-lr-scheduler": "override",
            "--use-checkpoint-opt_param-scheduler": "keep",
            "--use-checkpoint-lr-scheduler": "keep",
        },
    )
