"""The one writer of DeepSpeed's dictionary.

Whatever DeepSpeed changed between versions is written out: ``gradient_clipping`` (0.0
before 0.19.3, 1.0 since) and bf16's ``check_grad_overflow`` (off before 0.19.3, on since).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megads.config.deepspeed.overrides import merge, put
from megads.config.derive import data_degree
from megads.config.schema import RunConfig
from megads.config.tree import value_of

# DeepSpeed's key -> the setting whose value it has.
ALWAYS = {
    "communication_data_type": "deepspeed.communication_data_type",
    "wall_clock_breakdown": "deepspeed.wall_clock_breakdown",
    "zero_allow_untested_optimizer": "deepspeed.zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer": "deepspeed.zero_force_ds_cpu_optimizer",
    "comms_logger.enabled": "deepspeed.comms_logger",
    "comms_logger.verbose": "deepspeed.comms_logger_verbose",
    "comms_logger.prof_all": "deepspeed.comms_logger_prof_all",
    "comms_logger.debug": "deepspeed.comms_logger_debug",
}
ZERO = {
    "zero_optimization.contiguous_gradients": "deepspeed.contiguous_gradients",
    "zero_optimization.reduce_scatter": "deepspeed.reduce_scatter",
    "zero_optimization.reduce_bucket_size": "deepspeed.reduce_bucket_size",
    "zero_optimization.allgather_bucket_size": "deepspeed.allgather_bucket_size",
}
ZERO_3 = {
    "zero_optimization.zero_hpz_partition_size": "deepspeed.hpz_partition_size",
    "zero_optimization.sub_group_size": "deepspeed.sub_group_size",
    "zero_optimization.stage3_prefetch_bucket_size": "deepspeed.prefetch_bucket_size",
    "zero_optimization.stage3_param_persistence_threshold": "deepspeed.param_persistence_threshold",
    "zero_optimization.stage3_max_live_parameters": "deepspeed.max_live_parameters",
    "zero_optimization.stage3_max_reuse_distance": "deepspeed.max_reuse_distance",
}
OFFLOAD_OPTIMIZER = {
    "zero_optimization.offload_optimizer.device": "deepspeed.offload_optimizer",
    "zero_optimization.offload_optimizer.nvme_path": "deepspeed.nvme_path",
    "zero_optimization.offload_optimizer.pin_memory": "deepspeed.offload_pin_memory",
    "zero_optimization.offload_optimizer.buffer_count": "deepspeed.offload_buffer_count",
    "zero_optimization.offload_optimizer.pipeline_read": "deepspeed.offload_pipeline_read",
    "zero_optimization.offload_optimizer.pipeline_write": "deepspeed.offload_pipeline_write",
}
OFFLOAD_PARAMS = {
    "zero_optimization.offload_param.device": "deepspeed.offload_params",
    "zero_optimization.offload_param.nvme_path": "deepspeed.nvme_path",
    "zero_optimization.offload_param.pin_memory": "deepspeed.offload_pin_memory",
    "zero_optimization.offload_param.buffer_count": "deepspeed.offload_buffer_count",
}
HALF = {"data_types.grad_accum_dtype": "deepspeed.grad_accum_dtype"}
# Here null and "" or 0 mean the same.
NULLABLE = {
    "steps_per_print": "deepspeed.steps_per_print",
}
SETTING_OF: Mapping[str, str] = {
    **ALWAYS,
    **ZERO,
    **ZERO_3,
    **OFFLOAD_OPTIMIZER,
    **OFFLOAD_PARAMS,
    **HALF,
    **NULLABLE,
}
"""Every key of DeepSpeed that is a setting of ours under another name."""


def effective_zero_stage(run: RunConfig) -> int:
    """Return the ZeRO stage that DeepSpeed gets.

    ZeRO 0 in half precision becomes stage 1, which computes the same on any number of
    ranks: DeepSpeed's ZeRO 0 wrapper takes an optimizer step while it is constructed,
    counts the norm of one tensor-parallel rank only, and accumulates in half precision.
    """
    return max(1, run.parallel.zero_stage) if run.train.dtype != "fp32" else run.parallel.zero_stage


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
        put(config, "zero_optimization.overlap_comm", run.parallel.ddp_impl == "torch")
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
    merge(config, run.deepspeed.config_overrides, SETTING_OF)
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
