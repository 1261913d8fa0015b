"""The keys that DeepSpeed's dictionary has, and the reader of a user's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megads.config.tree import env_name
from megads.errors import ConfigError
from megads.storage.reading import Bounds, parse_json, read_text

# Key of DeepSpeed -> the setting that it is.
TAKEN: Mapping[str, str] = {
    "train_batch_size": "train.global_batch",
    "train_micro_batch_size_per_gpu": "train.micro_batch",
    "gradient_accumulation_steps": "train.grad_acc_steps",
    "gradient_clipping": "optim.clip_grad",
    "zero_optimization.stage": "parallel.zero_stage",
    "fp16.loss_scale": "optim.loss_scale",
    "fp16.initial_scale_power": "optim.initial_loss_scale_power",
    "fp16.loss_scale_window": "optim.loss_scale_window",
    "fp16.hysteresis": "optim.loss_scale_hysteresis",
    "fp16.min_loss_scale": "optim.min_loss_scale",
    "activation_checkpointing.partition_activations": "recompute.partition_activations",
    "activation_checkpointing.cpu_checkpointing": "recompute.cpu_checkpointing",
    "activation_checkpointing.contiguous_memory_optimization": "recompute.contiguous_memory",
    "activation_checkpointing.synchronize_checkpoint_boundary": "recompute.synchronize",
    "activation_checkpointing.profile": "recompute.profile",
    "flops_profiler.enabled": "profile.flops",
    "flops_profiler.profile_step": "profile.flops_step",
    "flops_profiler.module_depth": "profile.flops_depth",
    "optimizer.params.lr": "optim.lr",
    "optimizer.params.eps": "optim.adam_eps",
    "optimizer.params.weight_decay": "optim.weight_decay",
}
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
# Sections that megads does itself -> the settings to use instead.
OURS = {
    "optimizer": "OPT, LR, WEIGHT_DECAY, ADAM_BETA1, ADAM_BETA2 and ADAM_EPS",
    "scheduler": "LR_DECAY_STYLE, LR_WARMUP_ITERS and LR_DECAY_ITERS",
    "activation_checkpointing": "RECOMPUTE_WITH=deepspeed, PARTITION_ACTIVATIONS and CPU_CHECKPOINTING",
    "pipeline": "PP and PIPELINE_SPLIT",
    "tensor_parallel": "TP",
    "torch_autocast": "DTYPE",
    "flops_profiler": "FLOPS_PROFILE and FLOPS_PROFILE_STEP",
    "gradient_allreduce_op": "nothing: gradients are means over counted tokens",
    "seq_parallel_communication_data_type": "COMMUNICATION_DATA_TYPE",
    "dataloader_drop_last": "nothing: megads reads the data",
    "data_efficiency": "nothing: megads reads the data",
}
FOLLOWS = {
    **{key: env_name(name) for key, name in TAKEN.items() if key.partition(".")[0] not in OURS},
    "zero_optimization.overlap_comm": "DDP_IMPL=torch (true) or local (false)",
    **dict.fromkeys(("bf16.enabled", "bfloat16.enabled", "fp16.enabled", "fp16.auto_cast"), "DTYPE"),
}
"""Keys that follow from settings -> what decides them."""
# Further keys that DeepSpeed 0.19.8 reads.
OTHERS = (
    *("aio", "autotuning", "checkpoint", "comet", "comms_logger", "communication_data_type", "compile", "csv_monitor"),
    *("data_types", "datastates_ckpt", "disable_allgather", "disable_python_gc", "dump_state", "expert_parallel"),
    *("gradient_predivide_factor", "hybrid_engine", "keep_in_fp32_modules", "log_level"),
    *("managed_gradient_accumulation", "memory_breakdown", "nebula", "prescale_gradients", "sparse_gradients"),
    *("steps_per_print", "tensorboard", "timers", "use_data_before_expert_parallelism", "vocabulary_size"),
    *("wall_clock_breakdown", "wandb", "weight_quantization", "zero_allow_untested_optimizer"),
    *("zero_force_ds_cpu_optimizer", "zero_optimization"),
)
TOP_LEVEL = tuple(sorted({*(key.split(".")[0] for key in FOLLOWS), *OURS, *OTHERS}))
KEYS_OF: Mapping[str, tuple[str, ...]] = {
    "zero_optimization": (
        *("allgather_bucket_size", "allgather_partitions", "compute_grad_norm", "contiguous_gradients"),
        *("elastic_checkpoint", "enable_sanity_checks", "ignore_unused_parameters", "leaf_module", "legacy_stage1"),
        *("load_from_fp32_weights", "log_trace_cache_warnings", "memory_efficient_linear", "offload_optimizer"),
        *("offload_param", "overlap_comm", "override_module_apply", "parameter_alignment", "reduce_bucket_size"),
        *("pipeline_loading_checkpoint", "reduce_scatter", "round_robin_gradients", "stage", "sub_group_size"),
        *("save_muon_momentum_buffer_in_memory", "stage3_allgather_sequential", "stage3_max_live_parameters"),
        *("stage3_gather_16bit_weights_on_model_save", "stage3_max_reuse_distance"),
        *("stage3_model_persistence_threshold", "stage3_module_granularity_threshold"),
        *(
            "stage3_param_persistence_threshold",
            "stage3_prefetch_bucket_size",
            "stage3_use_all_reduce_for_fetch_params",
        ),
        *("use_multi_rank_bucket_allreduce", "zenflow", "zero_hpz_partition_size", "zero_quantized_gradients"),
        *("zero_quantized_nontrainable_weights", "zero_quantized_weights"),
    ),
    "zero_optimization.offload_optimizer": (
        *("buffer_count", "cpuadam_cores_perc", "device", "fast_init", "nvme_path", "pin_memory", "pipeline_read"),
        *("pipeline_write", "ratio", "super_offload"),
    ),
    "zero_optimization.offload_param": (
        *("buffer_count", "buffer_size", "device", "max_in_cpu", "nvme_path", "pin_memory"),
    ),
    "bf16": (
        *("bf16_master_weights_and_grads", "bf16_optimizer_states", "check_grad_overflow", "enabled"),
        "immediate_grad_update",
    ),
    "fp16": (
        *("auto_cast", "consecutive_hysteresis", "enabled", "fp16_master_weights_and_grads", "hysteresis"),
        *("initial_scale_power", "loss_scale", "loss_scale_window", "min_loss_scale"),
    ),
}
"""Of the sections whose unknown keys DeepSpeed refuses only on the ranks; without deprecated names."""


def read_json(given: str, shown: str) -> dict[str, Any]:
    """Return the object in a JSON text or file.

    Args:
        given: the text, or the name of the file.
        shown: where it was given, for messages.

    Raises:
        ConfigError: it cannot be read, or is not an object.
    """
    text = given
    if not given.lstrip().startswith("{"):
        try:
            if Path(given).exists() and not (Path(given).is_file() or Path(given).is_dir()):
                raise ConfigError(f"{shown}: not a regular file; pass a JSON file such as {{}}")
            text = read_text(given)
        except OSError as error:
            raise ConfigError(f"{shown}: {error.strerror}; pass a JSON file such as {{}}") from None
        except Bounds:
            raise ConfigError(f"{shown}: not text in UTF-8; pass a JSON file such as {{}}") from None

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _refuse_repeated([key for key, _ in pairs], shown)
        return dict(pairs)

    try:
        content = parse_json(text, constant=_no_constant, pairs=unique)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{shown}: not JSON: {error}; comments and trailing commas are not allowed") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{shown}: holds {str(content)[:40]!r}, not an object; use {{...}}")
    return content


def _refuse_repeated(keys: list[str], shown: str) -> None:
    """Refuse an object that gives a key twice, also as ``a.b`` next to ``a``."""
    found = set(keys)
    for key in keys:
        if len(keys) < 1000 and keys.count(key) > 1:
            raise ConfigError(f"{shown}: {key} is given twice in one object; drop one of them")
        for dot in (at for at, letter in enumerate(key) if letter == "."):
            if key[:dot] in found:
                raise ConfigError(f"{shown}: {key!r} is a part of {key[:dot]!r} and next to it; drop one of them")


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number")


def put(config: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted ``key``, making the sections on its way."""
    *sections, last = key.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[last] = value


def get(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of the dotted ``key``, None where there is none."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
