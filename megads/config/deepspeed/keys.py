"""The keys that DeepSpeed's dictionary has, and the reader of a user's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megads.errors import ConfigError
from megads.storage.reading import Bounds, parse_json, read_text

# Keys that follow from settings -> what decides them.
FOLLOWS = {
    "train_batch_size": "GLOBAL_BATCH",
    "train_micro_batch_size_per_gpu": "MICRO_BATCH",
    "gradient_accumulation_steps": "GRAD_ACC_STEPS",
    "gradient_clipping": "CLIP_GRAD",
    "zero_optimization.stage": "ZERO_STAGE",
    "zero_optimization.overlap_comm": "DDP_IMPL=torch (true) or local (false)",
    "bf16.enabled": "DTYPE",
    "bfloat16.enabled": "DTYPE",
    "fp16.enabled": "DTYPE",
    "fp16.auto_cast": "DTYPE",
    "fp16.loss_scale": "LOSS_SCALE",
    "fp16.initial_scale_power": "INITIAL_LOSS_SCALE_POWER",
    "fp16.loss_scale_window": "LOSS_SCALE_WINDOW",
    "fp16.hysteresis": "LOSS_SCALE_HYSTERESIS",
    "fp16.min_loss_scale": "MIN_LOSS_SCALE",
}
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
        keys = [key for key, _ in pairs]
        for key in (key for key in keys if len(pairs) < 1000 and keys.count(key) > 1):
            raise ConfigError(f"{shown}: {key} is given twice in one object; drop one of them")
        return dict(pairs)

    try:
        content = parse_json(text, constant=_no_constant, pairs=unique)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{shown}: not JSON: {error}; comments and trailing commas are not allowed") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{shown}: holds {str(content)[:40]!r}, not an object; use {{...}}")
    return content


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not a number")
