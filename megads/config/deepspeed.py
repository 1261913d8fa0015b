"""The one writer of DeepSpeed's dictionary.

Whatever DeepSpeed changed between versions is written out: ``gradient_clipping`` (0.0
before 0.19.3, 1.0 since) and bf16's ``check_grad_overflow`` (off before 0.19.3, on since).
"""

from __future__ import annotations

from typing import Any

from megads.config.derive import data_degree
from megads.config.schema import RunConfig

BUCKET_ELEMENTS = 50_000_000
"""Of a reduction: DeepSpeed's own 500 million would take 2 GB of every rank."""


def effective_zero_stage(run: RunConfig) -> int:
    """Return the ZeRO stage that DeepSpeed is told.

    ZeRO 0 in half precision becomes stage 1, which computes the same on any number of
    ranks: DeepSpeed's ZeRO 0 wrapper takes an optimizer step while it is constructed,
    counts the norm of one tensor-parallel rank only, and accumulates in half precision.
    """
    return max(1, run.parallel.zero_stage) if run.train.dtype != "fp32" else run.parallel.zero_stage


def deepspeed_config(run: RunConfig, world_size: int) -> dict[str, Any]:
    """Return DeepSpeed's config for a derived ``run`` on ``world_size`` ranks.

    Raises:
        ConfigError: the ranks can not be split.
    """
    data, optim = data_degree(run, world_size), run.optim
    half = run.train.dtype != "fp32"
    stage = effective_zero_stage(run)
    return {
        # DeepSpeed sees sequence-parallel ranks as data-parallel ones, so they count here.
        "train_batch_size": run.train.micro_batch * run.train.grad_acc_steps * data * run.parallel.sequence,
        "train_micro_batch_size_per_gpu": run.train.micro_batch,
        "gradient_accumulation_steps": run.train.grad_acc_steps,
        "gradient_clipping": optim.clip_grad,
        # Gradients are summed over ranks in float32: in the model's own type, which DeepSpeed
        # would take, the error grows with the number of ranks.
        "communication_data_type": "fp32",
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "steps_per_print": None,
        "wall_clock_breakdown": False,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": _zero(stage),
        "bf16": {"enabled": run.train.dtype == "bf16", "check_grad_overflow": True},
        "fp16": _fp16(run),
        **({"data_types": {"grad_accum_dtype": "fp32"}} if half else {}),
    }


def _zero(stage: int) -> dict[str, Any]:
    if stage == 0:
        return {"stage": 0}
    return {
        "stage": stage,
        "contiguous_gradients": True,
        "overlap_comm": False,
        "reduce_scatter": True,
        "reduce_bucket_size": BUCKET_ELEMENTS,
        "allgather_bucket_size": BUCKET_ELEMENTS,
    }


def _fp16(run: RunConfig) -> dict[str, Any]:
    optim = run.optim
    return {
        "enabled": run.train.dtype == "fp16",
        "auto_cast": False,
        "loss_scale": optim.loss_scale,
        "initial_scale_power": optim.initial_loss_scale_power,
        "loss_scale_window": optim.loss_scale_window,
        "hysteresis": optim.loss_scale_hysteresis,
        "consecutive_hysteresis": False,
        "min_loss_scale": optim.min_loss_scale,
    }
