"""The one writer of DeepSpeed's dictionary.

Whatever DeepSpeed changed between versions is written out: ``gradient_clipping`` (0.0
before 0.19.3, 1.0 since) and bf16's ``check_grad_overflow`` (off before 0.19.3, on since).
"""

from __future__ import annotations

from typing import Any

from megads.config.deepspeed.keys import (
    ALWAYS,
    HALF,
    NULLABLE,
    OFFLOAD_OPTIMIZER,
    OFFLOAD_PARAMS,
    ZERO,
    ZERO_3,
    put,
)
from megads.config.deepspeed.overrides import merge
from megads.config.engine_choice import choose
from megads.config.schema import RunConfig
from megads.config.sizes import data_degree
from megads.config.tree import value_of


def effective_zero_stage(run: RunConfig) -> int:
    """Return the ZeRO stage that the engine runs with; the native one with the stage of the settings.

    DeepSpeed's ZeRO 0 in half precision becomes stage 1, which computes the same on any number of
    ranks: DeepSpeed's ZeRO 0 wrapper takes an optimizer step while it is constructed,
    counts the norm of one tensor-parallel rank only, and accumulates in half precision.
    """
    is_native = choose(run, 0).kind == "native"
    return run.parallel.zero_stage if run.train.dtype == "fp32" or is_native else max(1, run.parallel.zero_stage)


def is_bf16_optimizer(run: RunConfig) -> bool:
    """Return whether DeepSpeed takes its ``BF16_Optimizer``, which sums gradients after the backward pass only."""
    return (
        run.train.dtype == "bf16"
        and effective_zero_stage(run) == 1
        and run.deepspeed.grad_accum_dtype == "fp32"
        and run.deepspeed.offload_optimizer == "none"
    )


def overlaps(run: RunConfig) -> bool:
    """Return whether DeepSpeed gathers and reduces in queues of their own, parallel to the computation.

    ZeRO 3 does on every machine with accelerators, as DeepSpeed's own default is: in the queue of the
    computation each all-gather of weights would stop it. A CPU has one queue.
    """
    return run.parallel.ddp_impl == "torch" or (effective_zero_stage(run) == 3 and run.machine != "cpu")


def dictionary_of(run: RunConfig, world_size: int) -> dict[str, Any] | None:
    """Return :func:`deepspeed_config` of a run that DeepSpeed runs, None of another.

    Raises:
        ConfigError: as it does.
    """
    return deepspeed_config(run, world_size) if choose(run, world_size).kind == "deepspeed" else None


def deepspeed_config(run: RunConfig, world_size: int) -> dict[str, Any]:
    """Return DeepSpeed's config for a derived ``run`` on ``world_size`` ranks.

    The launcher has put the content of ``DS_CONFIG_OVERRIDES`` into ``run``
    (``megads.config.deepspeed.overrides.adopt``), so that launcher and ranks merge the same.

    Raises:
        ConfigError: the ranks cannot be split, or an override contradicts the settings.
    """
    config = _derived(run, world_size)
    tables = [ALWAYS]
    stage = effective_zero_stage(run)
    if stage:
        tables.append(ZERO)
        # Reducing each slice to its owner sends half of what reducing it to all would.
        put(config, "zero_optimization.use_multi_rank_bucket_allreduce", False)
        put(config, "zero_optimization.overlap_comm", overlaps(run))
    if stage == 3:
        tables.append(ZERO_3)
        # It would replace torch.nn.functional.linear for the whole process.
        put(config, "zero_optimization.memory_efficient_linear", False)
    if stage and run.deepspeed.offload_optimizer != "none":
        tables.append(OFFLOAD_OPTIMIZER)
    if stage == 3 and run.deepspeed.offload_params != "none":
        tables.append(OFFLOAD_PARAMS)
    if run.train.dtype != "fp32":
        tables.append(HALF)
    for table in tables:
        for key, name in table.items():
            if value_of(run, name) != "":
                put(config, key, value_of(run, name))
    for key, name in NULLABLE.items():
        put(config, key, value_of(run, name) or None)
    merge(config, run.deepspeed.config_overrides)
    return _without_unused_log(config)


def _without_unused_log(config: dict[str, Any]) -> dict[str, Any]:
    """Drop the section ``comms_logger`` where it says ``"enabled": false``.

    The section alone switches the log on in DeepSpeed 0.19.8: a wait for the device behind every collective.
    """
    if not config["comms_logger"]["enabled"]:
        del config["comms_logger"]
    return config


def _derived(run: RunConfig, world_size: int) -> dict[str, Any]:
    """Return what follows from the layout, the batch and the precision."""
    data, optim = data_degree(run, world_size), run.optim
    return {
        # DeepSpeed sees sequence-parallel ranks as data-parallel ones, so they count here.
        "train_batch_size": run.train.micro_batch * run.train.grad_acc_steps * data * run.parallel.sequence,
        "train_micro_batch_size_per_gpu": run.train.micro_batch,
        "gradient_accumulation_steps": run.train.grad_acc_steps,
        "gradient_clipping": optim.clip_grad,
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "zero_optimization": {"stage": effective_zero_stage(run)},
        # Each gradient goes into the float32 sum as it comes, so that it is not held twice.
        "bf16": {"enabled": run.train.dtype == "bf16", "check_grad_overflow": True, "immediate_grad_update": True},
        "fp16": {
            "enabled": run.train.dtype == "fp16",
            "auto_cast": False,
            "loss_scale": optim.loss_scale,
            "initial_scale_power": optim.initial_loss_scale_power,
            "loss_scale_window": optim.loss_scale_window,
            "hysteresis": optim.loss_scale_hysteresis,
            "consecutive_hysteresis": False,
            "min_loss_scale": optim.min_loss_scale,
        },
        "pipeline": {"pipe_partitioned": False, "grad_partitioned": False},
        # It would wait for the device twice in every micro-batch, for a number that nobody reads.
        "timers": {"throughput": {"enabled": False}},
    }
