"""Names of environment variables: settings, their aliases, slips, and names of other toolkits."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Mapping

from megads.config.sources.parse import FALSE, switch
from megads.config.tree import extra, names_of, read_value, settings
from megads.errors import ConfigError
from megads.release.deprecated import deprecated

STRICT = "MEGADS_STRICT"
PROGRAM_NAMES = (
    *("MEGADS_BACKEND", "MEGADS_DEVICE", "MEGADS_NODES", "MEGADS_PEAK_TFLOPS", "MEGADS_PYTHON", "MEGADS_ROOT"),
    STRICT,
)
"""Variables of the program that are not settings of a run."""

INTERNAL = (
    *("MEGADS_ACTIVE", "MEGADS_ATTEMPT", "MEGADS_COMMAND", "MEGADS_ENDS_AT", "MEGADS_EXTRAS", "MEGADS_FOUND_PYTHON"),
    *("MEGADS_IN_PLACE", "MEGADS_LOCAL_RANK", "MEGADS_LOCAL_SIZE", "MEGADS_NO_VENV", "MEGADS_NUM_RANKS"),
    *("MEGADS_RANK", "MEGADS_REQUIRE_ALL", "MEGADS_SITE_PYTHON", "MEGADS_TEST_WORKERS", "MEGADS_TOKEN"),
    *("MEGADS_LEASE", "MEGADS_STAGE_AT", "MEGADS_STAGE_SECRET", "MEGADS_WATCHED", "MEGADS_WORLD_SIZE"),
    "MEGADS_CONTAINER",
    "MEGADS_API_KEY",  # of a server and its clients; a training job has no use for it
)
"""Variables that parts of the program pass to each other."""

# Variables of argonne-lcf/Megatron-DeepSpeed (ALCF/helpers.sh and what it calls) and of ezpz.
# Ignoring one of these would train something else than the user asked for.
REFUSED = {
    "NOOP": "a dry run is `megads train --dry-run`; NOOP",
    "TIMING_STR": "passing arguments through",
}

# These change what is shown or how ranks start, not what is trained.
_WITHOUT_EFFECT = {
    "metrics go to metrics.jsonl in the run folder": "AZUREML_EXPERIMENT_ID DUMP_SKIPPED_ITERS DUMP_TOKENS "
    "SUBMIT_SCRIPTS TIMING_LOG_LEVEL",
    "the backend follows from the device; MEGADS_BACKEND overrides it": "BE CCL NCCL TORCH_BACKEND",
    "name the data in DATA_FILE_LIST": "DATA_PARENT",
    "use LOG_LEVEL": "DEBUG EZPZ_LOG_ALL_RANKS EZPZ_LOG_LEVEL",
    "PROFILE=FIRST-LAST traces steps": "DLIO_PROFILER_DATASET_DIR PYINSTRUMENT_PROFILER TORCH_PROFILER_ENABLE",
    "megads has one program": "EXEC",
    "use LAUNCH_WITH": "EZPZ_SCHEDULER LAUNCH_CMD",
    "FLOPS_PROFILE=1 writes one table of all modules; FLOPS_PROFILE_DEPTH says how deep": "FLOPS_PROFILER_TOP_MODULES "
    "FLOPS_PROFILER_DETAILED FLOPS_PROFILER_OUTPUT",
    "use NGPU_PER_HOST": "GPUS_PER_NODE",
    "no toolkit reads it": "MICS_SHARD_SIZE",
    "use MEGADS_DEVICE": "TORCH_DEVICE",
    "its files are in the run folder, under wandb": "WANDB_DIR",
    "a resumed run continues its own; WANDB_RUN_ID names another run to continue": "WANDB_RESUME",
}
NO_EFFECT = {name: why for why, names in _WITHOUT_EFFECT.items() for name in names.split()}

# Set by launchers, schedulers and the operating system; megads reads them where it must.
SYSTEM = frozenset(
    (
        *("CFLAGS", "CUDA_DEVICE_MAX_CONNECTIONS", "GROUP_RANK", "HOST", "HOSTNAME", "LD_LIBRARY_PATH", "LOCAL_RANK"),
        *("LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MPI_ROOT", "NAME", "NODE_RANK"),
        *("NUMEXPR_MAX_THREADS", "OMP_NUM_THREADS", "PATH", "RANK", "WORLD_SIZE", "http_proxy", "https_proxy"),
    )
)
_SYSTEM_PREFIXES = (
    *("CCL_", "CUDA_", "FI_", "FLUX_", "HIP_", "LSB_", "MPICH_", "MPI_", "NCCL_", "NVTE_", "OMPI_", "PALS_", "PBS_"),
    *("PMIX_", "PMI_", "PRTE_", "PYTHON", "RCCL_", "SLURM_", "TORCHELASTIC_", "TORCH_NCCL_", "UCX_", "ZE_"),
)

# Setting meant -> names that people use for it. None of them is a variable that schedulers,
# module systems, shells or site profiles set.
_MEANT: Mapping[str, str] = {
    "MODEL_ARCH": "MODEL PRESET MODEL_NAME MODEL_SIZE MODEL_PRESET MODEL_TYPE MODEL_CONFIG",
    "TP": "TPP TP_SIZE TP_DEGREE TENSOR_PARALLEL TENSOR_PARALLEL_SIZE TENSOR_PARALLEL_DEGREE TENSOR_MODEL_PARALLEL "
    "TENSOR_MODEL_PARALLEL_SIZE MODEL_PARALLEL_SIZE MP_SIZE",
    "PP": "PPP PP_SIZE PP_DEGREE PIPELINE_PARALLEL PIPELINE_PARALLEL_SIZE PIPELINE_MODEL_PARALLEL_SIZE "
    "PIPE_PARALLEL_SIZE",
    "SP": "SP_SIZE SP_DEGREE ULYSSES ULYSSES_DEGREE CP CP_SIZE CONTEXT_PARALLEL CONTEXT_PARALLEL_SIZE "
    "SEQUENCE_PARALLEL_SIZE DS_SEQUENCE_PARALLEL_SIZE",
    "DP": "DP_SIZE DP_DEGREE DATA_PARALLEL DATA_PARALLEL_SIZE",
    "ZERO_STAGE": "ZERO ZERO_LEVEL ZERO_OPT ZERO_OPT_STAGE ZERO_OPTIMIZATION DEEPSPEED_STAGE DS_ZERO_STAGE FSDP",
    "NGPU_PER_HOST": "N_GPUS NUM_GPUS NGPU GPUS NUM_GPU GPU_COUNT NPROC_PER_NODE NGPUS_PER_NODE NUM_GPUS_PER_NODE "
    "RANKS_PER_NODE PPN RANKS_PER_HOST",
    "NHOSTS": "NNODES NUM_NODES N_NODES NODES NUM_HOSTS N_HOSTS",
    "MICRO_BATCH": "MBS MICRO_BS MICRO_BATCH_SIZE_PER_GPU PER_DEVICE_BATCH_SIZE "
    "PER_DEVICE_TRAIN_BATCH_SIZE TRAIN_MICRO_BATCH_SIZE_PER_GPU BATCH_SIZE_PER_GPU",
    "GLOBAL_BATCH": "GBS BS BATCH BATCH_SIZE TRAIN_BATCH_SIZE TRAIN_BATCH GLOBAL_BS TOTAL_BATCH_SIZE",
    "GRAD_ACC_STEPS": "GAS GA GRAD_ACC GRAD_ACCUM GRAD_ACCUM_STEPS GRADIENT_ACCUMULATION GRADIENT_ACCUMULATION_STEPS "
    "ACCUMULATION_STEPS ACCUM_STEPS",
    "TRAIN_ITERS": "ITERS STEPS MAX_STEPS NUM_STEPS TRAIN_STEPS TRAINING_STEPS TOTAL_STEPS MAX_ITERS NUM_ITERS "
    "EPOCHS NUM_EPOCHS NUM_TRAIN_EPOCHS",
    "TRAIN_TOKENS": "NUM_TOKENS TOTAL_TOKENS MAX_TOKENS TOKEN_BUDGET",
    "TRAIN_SAMPLES": "NUM_SAMPLES TOTAL_SAMPLES",
    "NLAYERS": "LAYERS N_LAYERS N_LAYER NUM_LAYER NUM_HIDDEN_LAYERS",
    "HIDDEN": "D_MODEL HIDDEN_DIM N_EMBD EMBED_DIM MODEL_DIM DIM",
    "HEADS": "N_HEADS N_HEAD NUM_HEAD NUM_ATTENTION_HEADS ATTENTION_HEADS ATTN_HEADS",
    "NUM_KV_HEAD": "KV_HEADS N_KV_HEADS NUM_QUERY_GROUPS NUM_KEY_VALUE_HEADS KV_HEAD",
    "FFN_HIDDEN_SIZE": "FFN FFN_SIZE FFN_DIM FFN_HIDDEN INTERMEDIATE_SIZE MLP_DIM D_FF",
    "SEQ": "SEQLEN SEQUENCE_LENGTH CONTEXT_LENGTH CONTEXT_LEN MAX_SEQ_LEN MAX_SEQ_LENGTH BLOCK_SIZE CTX_LEN",
    "MAX_POSITIONS": "MAX_POSITION_EMBEDDINGS",
    "ROPE_THETA": "ROTARY_BASE ROPE_BASE",
    "DTYPE": "PRECISION MIXED_PRECISION DATA_TYPE TORCH_DTYPE BF16 FP16 FP32 USE_BF16 USE_FP16",
    "LR": "LRR LEARNING_RATE MAX_LR PEAK_LR LR_MAX BASE_LR INIT_LR",
    "MIN_LR": "LR_MIN MINIMUM_LR MIN_LEARNING_RATE",
    "LR_WARMUP_ITERS": "WARMUP WARMUP_STEPS WARMUP_ITERS NUM_WARMUP_STEPS LR_WARMUP_STEPS",
    "LR_WARMUP_FRAC": "WARMUP_FRAC WARMUP_RATIO WARMUP_FRACTION LR_WARMUP_RATIO",
    "LR_DECAY_STYLE": "LR_SCHEDULE LR_SCHEDULER LR_SCHEDULER_TYPE SCHEDULE",
    "WEIGHT_DECAY": "WD L2",
    "ADAM_BETA1": "BETA1",
    "ADAM_BETA2": "BETA2",
    "ADAM_EPS": "EPSILON ADAM_EPSILON",
    "CLIP_GRAD": "GRAD_CLIP GRADIENT_CLIPPING GRADIENT_CLIP MAX_GRAD_NORM GRAD_NORM_CLIP",
    "HIDDEN_DROPOUT": "DROPOUT",
    "SEED": "RANDOM_SEED MANUAL_SEED",
    "RECOMPUTE": "ACTIVATION_CHECKPOINTING GRADIENT_CHECKPOINTING ACT_CKPT",
    "ATTENTION": "FLASH FLASH_ATTN FLASH_ATTENTION USE_FLASH_ATTN USE_FLASH_ATTENTION ATTN_IMPLEMENTATION",
    "DATA_FILE_LIST": "DATASET DATASETS DATA_LIST FILE_LIST DATA_DIR TRAIN_DATA DATASET_PATH",
    "TOKENIZER_MODEL": "TOKENIZER TOKENIZER_PATH TOKENIZER_NAME TOKENIZER_NAME_OR_PATH TOKENIZER_DIR",
    "RUN_DIR": "OUTPUT_DIR OUT_DIR OUTPUT_PATH",
    "RUN_NAME": "EXP_NAME EXPERIMENT_NAME EXPERIMENT JOB_TITLE WANDB_RUN_NAME",
    "CKPT_DIR": "CHECKPOINT_DIR CHECKPOINTS_DIR CHECKPOINT_PATH SAVE_DIR SAVE_PATH CKPT_PATH",
    "LOAD": "LOAD_DIR LOAD_PATH LOAD_CHECKPOINT RESUME_FROM RESUME_FROM_CHECKPOINT",
    "SAVE_INTERVAL": "SAVE_STEPS SAVE_EVERY CHECKPOINT_INTERVAL CKPT_INTERVAL SAVE_FREQ",
    "EVAL_INTERVAL": "EVAL_STEPS EVAL_EVERY EVAL_FREQ VAL_INTERVAL",
    "LOG_INTERVAL": "LOGGING_STEPS LOG_EVERY LOG_STEPS LOG_FREQ",
    "LAUNCH_WITH": "LAUNCHER",
    "WALLTIME": "WALL_TIME TIME_LIMIT",
}
OTHER_NAMES: Mapping[str, str] = {name: meant for meant, names in _MEANT.items() for name in names.split()}
"""Name -> the variable of the setting that it means; all of them have no effect."""


@functools.cache
def setting_names() -> tuple[str, ...]:
    """Return every variable that some setting reads."""
    names = ((*names_of(name), *extra(field, "switches")) for name, field in settings())
    return tuple(dict.fromkeys(itertools.chain.from_iterable(names)))


def read_switch(env: Mapping[str, str], name: str) -> bool:
    """Return whether the variable ``name`` is set and on.

    Raises:
        ConfigError: it is neither on nor off.
    """
    try:
        return bool(env.get(name)) and switch(env[name])
    except ValueError as error:
        raise ConfigError(f"env {name}: {error}") from None


def refuse_unsupported(env: Mapping[str, str]) -> None:
    """Refuse variables of other toolkits that ask for what this version does not do.

    Raises:
        ConfigError: naming the variable and how to continue without it.
    """
    for name, what in REFUSED.items():
        value = env.get(name, "").strip()
        if value and value.lower() not in FALSE:
            raise ConfigError(f"{name}={value}: {what} is not supported yet; unset {name}")


def name_notes(env: Mapping[str, str]) -> list[str]:
    """Return a line for every variable that has no effect here, is deprecated, or looks like a misspelt setting.

    Raises:
        ConfigError: there is one, and ``MEGADS_STRICT`` is on; or that is not a switch.
    """
    notes = {name: f"{name}={env[name]} has no effect: {why}" for name, why in NO_EFFECT.items() if _is_set(env, name)}
    notes |= {name: each.note() for name, each in deprecated("variable").items() if _is_set(env, name)}
    for name in sorted(env):
        if not _is_set(env, name) or name in _known_names() or name in REFUSED or name in NO_EFFECT or name in SYSTEM:
            continue
        if name.startswith(_SYSTEM_PREFIXES):
            continue
        if meant := _meant_by(name, env[name]):
            notes[name] = f"{name}={env[name]} has no effect: {name} is not a setting; use {meant}"
        elif close := _closest(name):
            notes[name] = f"{name} is not a setting; did you mean {close}?"
        elif name.startswith("MEGADS_"):
            notes[name] = f"{name}={env[name]} has no effect: megads has no variable of this name"
    if notes and read_switch(env, STRICT):
        name, note = next(iter(notes.items()))
        raise ConfigError(f"{note}; {STRICT}={env[STRICT]} rejects it: unset {name} or unset {STRICT}")
    return list(notes.values())


def _is_set(env: Mapping[str, str], name: str) -> bool:
    return bool(env.get(name, "").strip())


def _meant_by(name: str, text: str) -> str:
    """Return the variable that a name of another toolkit means; a short name may be something else altogether."""
    meant = OTHER_NAMES.get(name, "")
    if meant and len(name) <= 3:
        try:
            read_value(next(setting for setting, field in settings() if extra(field, "env") == meant), text, name)
        except ConfigError:
            return ""
    return meant


@functools.cache
def _known_names() -> frozenset[str]:
    return frozenset((*setting_names(), *PROGRAM_NAMES, *INTERNAL))


@functools.cache  # settings are resolved more than once, and a user's shell has a hundred other variables
def _closest(name: str) -> str:
    """Return the name that ``name`` is a slip of, empty if it is none."""
    known = [*setting_names(), *PROGRAM_NAMES]
    if len(name) <= 4:
        # A letter typed twice; anything shorter is alike to too much.
        single = {name[:place] + name[place + 1 :] for place in range(1, len(name)) if name[place] == name[place - 1]}
        twice = [each for each in known if each in single]
        if twice or len(name) <= 3:
            return twice[0] if twice else ""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.85)), "")
