"""The settings of the engine, of recomputation and of DeepSpeed, besides the layout and the batch."""

from __future__ import annotations

from typing import Literal

from megads.config.setting import DTYPES, Section, setting


class EngineConfig(Section):
    """Which engine runs the steps of this run."""

    kind: Literal["auto", "native", "deepspeed"] = setting(
        "auto",
        "ENGINE",
        "what runs a step: megads' own engine (native) or DeepSpeed; auto: the one that can do what is asked",
    )
    kernels: Literal["auto", "eager", "compiled", "liger"] = setting(
        "auto",
        "KERNELS",
        "how layers and loss are computed: eager (operator by operator), compiled by torch.compile, or with kernels of "
        "liger-kernel; auto: compiled on accelerators, where the first step agrees with eager, and eager on a CPU",
        switches={"COMPILE": "compiled"},
    )


class RecomputeConfig(Section):
    """What is computed again in the backward pass instead of kept, and what never stands whole."""

    granularity: Literal["none", "selective", "full"] = setting(
        "none",
        "RECOMPUTE RECOMPUTE_GRANULARITY --recompute-granularity",
        "selective: the attention core; full: whole layers",
        switches={
            "RECOMPUTE_ACTIVATIONS": "selective",
            "USE_ACTIVATION_CHECKPOINTING": "full",
            "CHECKPOINT_ACTIVATIONS": "full",
        },
        flags={"--recompute-activations": "selective", "--checkpoint-activations": "full"},
    )
    method: Literal["uniform", "block"] = setting(
        "uniform",
        "RECOMPUTE_METHOD --recompute-method",
        "with RECOMPUTE=full: uniform (every group of layers keeps only its input) or block (the first "
        "layers of a stage)",
        flags={"--checkpoint-activations": "uniform"},
    )
    num_layers: int = setting(
        1,
        "RECOMPUTE_NUM_LAYERS ACT_CKPT_NUM_LAYERS --recompute-num-layers --checkpoint-num-layers",
        "with RECOMPUTE=full: layers in a group (uniform), or recomputed in each stage (block)",
        gt=0,
    )
    engine: Literal["torch", "deepspeed"] = setting(
        "torch",
        "RECOMPUTE_WITH",
        "implementation of recomputation; the settings that split inputs or time them need deepspeed",
        switches={"DEEPSPEED_ACTIVATION_CHECKPOINTING": "deepspeed", "DISTRIBUTE_SAVED_ACTIVATIONS": "deepspeed"},
        flags={
            "--deepspeed-activation-checkpointing": "deepspeed",
            "--distribute-saved-activations": "deepspeed",
            "--distribute-checkpointed-activations": "deepspeed",
        },
    )
    partition_activations: bool = setting(
        False,
        "PARTITION_ACTIVATIONS --partition-activations --distribute-saved-activations "
        "--distribute-checkpointed-activations",
        "split kept inputs over the TP ranks; gather them for the backward pass",
        switches={"DISTRIBUTE_SAVED_ACTIVATIONS": True},
    )
    cpu_checkpointing: bool = setting(
        False,
        "CPU_CHECKPOINTING CHECKPOINT_IN_CPU --checkpoint-in-cpu",
        "keep inputs of recomputed layers in host memory",
    )
    long_context: bool = setting(
        False,
        "LONG_CONTEXT",
        "plan by memory for long rows: loss in chunks, layers recomputed, MLP in tiles, their inputs and the optimizer "
        "on the host, in this order until a rank's device suffices",
    )
    loss_chunk: int = setting(
        0,
        "LOSS_CHUNK",
        "of which logits stand at a time, with their share of the gradients; 0: all of a micro-batch",
        unit="tokens",
        ge=0,
    )
    mlp_tiles: int = setting(
        1,
        "MLP_TILES",
        "parts of a rank's tokens that pass an MLP in turn, and again in the backward pass; 1: all together",
        gt=0,
    )
    contiguous_memory: bool = setting(
        False,
        "CONTIGUOUS_CHECKPOINTING CONTIGIOUS_CHECKPOINTING --contigious-checkpointing",
        "keep partitioned inputs in one buffer; needs PARTITION_ACTIVATIONS",
    )
    synchronize: bool = setting(
        False, "SYNCHRONIZE_EACH_LAYER --synchronize-each-layer", "synchronize the device at every checkpoint"
    )
    profile: bool = setting(
        False, "PROFILE_BACKWARD --profile-backward", "time the forward and backward of every checkpoint"
    )


class DeepSpeedConfig(Section):
    """DeepSpeed's settings besides the layout, the batch and the precision."""

    config_overrides: str = setting(
        "",
        "DS_CONFIG_OVERRIDES --deepspeed_config --deepspeed-config",
        "JSON file merged into DeepSpeed's dictionary; may not contradict settings",
    )
    offload_optimizer: Literal["none", "cpu", "nvme"] = setting(
        "none",
        "OFFLOAD_OPTIMIZER",
        "where the optimizer state is kept and updated; needs ZERO_STAGE 1 or more, nvme 3",
        switches={"CPU_OPTIMIZER": "cpu"},
        flags={"--cpu-optimizer": "cpu"},
    )
    offload_params: Literal["none", "cpu", "nvme"] = setting(
        "none", "OFFLOAD_PARAMS --remote-device", "where the partitioned weights are kept; needs ZERO_STAGE=3"
    )
    nvme_path: str = setting("", "NVME_PATH", "folder on a local NVMe disk for offloaded state")
    offload_pin_memory: bool = setting(
        True, "OFFLOAD_PIN_MEMORY --use-pin-memory", "page-lock the host memory of offload"
    )
    offload_buffer_count: int = setting(4, "OFFLOAD_BUFFER_COUNT", "buffers of NVMe offload", gt=0)
    offload_pipeline_read: bool = setting(False, "OFFLOAD_PIPELINE_READ", "prefetch from NVMe")
    offload_pipeline_write: bool = setting(False, "OFFLOAD_PIPELINE_WRITE", "write to NVMe in the background")
    torch_compiler: Literal["when_used", "at_start"] = setting(
        "when_used",
        "TORCH_COMPILER",
        "when a rank imports torch's compiler: when_used halves the time of its start-up; at_start always where "
        "DS_CONFIG_OVERRIDES has a section compile",
    )
    hpz_partition_size: int = setting(
        1,
        "ZERO_HPZ_PARTITION_SIZE",
        "ZeRO++ hpZ: ranks (of one host) that hold a second copy of the weights together; needs ZERO_STAGE=3",
        gt=0,
    )
    communication_data_type: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        "COMMUNICATION_DATA_TYPE",
        "dtype of gradients in collectives; below fp32 it adds rounding",
        synonyms=DTYPES,
    )
    grad_accum_dtype: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32",
        "GRAD_ACCUM_DTYPE",
        "dtype of accumulated gradients in half precision",
        flags={"--accumulate-allreduce-grads-in-fp32": "fp32"},
        synonyms=DTYPES,
    )
    contiguous_gradients: bool = setting(
        True, "CONTIGUOUS_GRADIENTS --zero-contigious-gradients", "copy gradients into one contiguous buffer"
    )
    reduce_scatter: bool = setting(True, "REDUCE_SCATTER --zero-reduce-scatter", "reduce gradients to their owner only")
    reduce_bucket_size: int = setting(50_000_000, "REDUCE_BUCKET_SIZE", "of one reduction", unit="elements", gt=0)
    allgather_bucket_size: int = setting(
        50_000_000, "ALLGATHER_BUCKET_SIZE", "bucket size of one all-gather of weights", unit="elements", gt=0
    )
    sub_group_size: int = setting(
        1_000_000_000, "SUB_GROUP_SIZE", "ZeRO 3: elements updated in one step", unit="elements", gt=0
    )
    prefetch_bucket_size: int = setting(
        50_000_000, "STAGE3_PREFETCH_BUCKET_SIZE", "ZeRO 3: elements to prefetch", unit="elements", ge=0
    )
    param_persistence_threshold: int = setting(
        100_000,
        "STAGE3_PARAM_PERSISTENCE_THRESHOLD",
        "ZeRO 3: smaller parameters are not partitioned",
        unit="elements",
        ge=0,
    )
    max_live_parameters: int = setting(
        1_000_000_000,
        "STAGE3_MAX_LIVE_PARAMETERS",
        "ZeRO 3: limit of gathered elements on a device",
        unit="elements",
        gt=0,
    )
    max_reuse_distance: int = setting(
        1_000_000_000,
        "STAGE3_MAX_REUSE_DISTANCE",
        "ZeRO 3: weights that are reused within this many elements stay gathered",
        unit="elements",
        ge=0,
    )
    zero_allow_untested_optimizer: bool = setting(
        True, "ZERO_ALLOW_UNTESTED_OPTIMIZER", "let DeepSpeed take any optimizer"
    )
    zero_force_ds_cpu_optimizer: bool = setting(
        False, "ZERO_FORCE_DS_CPU_OPTIMIZER", "with offload, demand DeepSpeed's own CPU optimizer"
    )
    steps_per_print: int = setting(0, "STEPS_PER_PRINT", "steps between DeepSpeed's own lines; 0: never", ge=0)
    wall_clock_breakdown: bool = setting(False, "WALL_CLOCK_BREAKDOWN", "DeepSpeed's own timers")
    comms_logger: bool = setting(False, "COMMS_LOGGER", "DeepSpeed's log of its collectives")
    comms_logger_verbose: bool = setting(False, "COMMS_LOGGER_VERBOSE", "each collective as it happens")
    comms_logger_prof_all: bool = setting(True, "COMMS_LOGGER_PROF_ALL", "all collectives, not a list")
    comms_logger_debug: bool = setting(False, "COMMS_LOGGER_DEBUG", "with the calling function's name")
