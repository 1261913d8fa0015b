"""Slips of names, and names of other toolkits."""

from __future__ import annotations

import os

import pytest

from megads.config.names import NO_EFFECT, REFUSED, SYSTEM, name_notes, refuse_unsupported, setting_names
from megads.config.resolve import resolve
from megads.errors import ConfigError

# Every variable that argonne-lcf/Megatron-DeepSpeed reads from its user.
ALCF = {
    "job": "DEBUG NOOP HOSTFILE NGPU_PER_HOST WORLD_SIZE EXEC LAUNCH_WITH LAUNCH_CMD GPUS_PER_NODE MPI_ROOT "
    "NUMEXPR_MAX_THREADS",
    "parallelism": "TP PP SP",
    "batch": "MICRO_BATCH GRAD_ACC_STEPS GLOBAL_BATCH TRAIN_TOKENS TRAIN_ITERS TRAIN_ITER",
    "model": "MODEL_ARCH HEADS NHEADS NLAYERS NUM_LAYERS HIDDEN NUM_KV_HEAD FFN_HIDDEN_SIZE SEQ ROPE_THETA NO_LLAMA "
    "NO_FLASH_ATTN INIT_METHOD_STD",
    "optimizer": "OPT OPTIMIZER OPTIM LR LR_DECAY_STYLE LR_WARMUP_FRAC LR_WARMUP_FRACTION LR_DECAY_ITERS WEIGHT_DECAY "
    "ADAM_BETA1 ADAM_BETA2 ADAM_EPS CLIP_GRAD OVERRIDE_CKPT_OPT_PARAM",
    "memory": "DTYPE ZERO_STAGE ZERO_HPZ_PARTITION_SIZE CPU_OPTIMIZER USE_ACTIVATION_CHECKPOINTING ACT_CKPT_NUM_LAYERS "
    "COMMS_LOGGER CCL NCCL BE MICS_SHARD_SIZE",
    "data": "DATA_FILE_LIST TOKENIZER_TYPE TOKENIZER_MODEL DATA_PARENT TRAIN_SPLIT VAL_SPLIT TEST_SPLIT "
    "DATA_CACHE_PATH",
    "output": "CKPT_DIR LOAD SAVE SAVE_INTERVAL EVAL_INTERVAL EVAL_ITERS LOG_INTERVAL TIMING_LOG_LEVEL TIMING_STR "
    "NO_TENSORBOARD",
    "python": "LOG_LEVEL WB_PROJECT WANDB_PROJECT WANDB_MODE WANDB_DISABLED DUMP_TOKENS DUMP_SKIPPED_ITERS "
    "TORCH_PROFILER_ENABLE PYINSTRUMENT_PROFILER DLIO_PROFILER_DATASET_DIR CUDA_DEVICE_MAX_CONNECTIONS "
    "AZUREML_EXPERIMENT_ID SUBMIT_SCRIPTS RANK",
    "ezpz": "CPU_BIND TORCH_DEVICE TORCH_BACKEND TORCH_DDP_TIMEOUT EZPZ_SCHEDULER EZPZ_LOG_LEVEL EZPZ_LOG_ALL_RANKS "
    "LOCAL_WORLD_SIZE",
}
ALL = [name for names in ALCF.values() for name in names.split()]


@pytest.mark.parametrize("name", ALL)
def test_every_alcf_variable_has_exactly_one_fate(name):
    fates = [name in setting_names(), name in REFUSED, name in NO_EFFECT, name in SYSTEM]
    assert fates.count(True) == 1


@pytest.mark.parametrize("name", ["NLAYER", "HEAD", "MICROBATCH", "NUM_KV_HEADZ", "MEGADS_BACKENDS"])
def test_near_misses_are_named(name):
    (note,) = name_notes({name: "1"})
    assert note.startswith(f"{name} is not a setting; did you mean ")


def test_near_miss_says_the_right_name():
    assert name_notes({"NLAYER": "4"}) == ["NLAYER is not a setting; did you mean NLAYERS?"]


def test_this_machine_raises_nothing():
    env = {name: value for name, value in os.environ.items() if name not in setting_names()}
    assert name_notes(env) == []
    refuse_unsupported(env)


def test_launcher_variables_raise_nothing():
    env = dict.fromkeys(("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG"), "1")
    assert resolve(env=env, machine="generic").notes == ()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_unsupported_names_are_refused_when_on(name):
    with pytest.raises(ConfigError, match=rf"{name}=4: .*not supported yet; unset {name}$"):
        resolve(env={name: "4"}, machine="generic")
    for value in ("", "0", "False", "no"):
        assert resolve(env={name: value}, machine="generic").notes == ()


@pytest.mark.parametrize("name", sorted(NO_EFFECT))
def test_harmless_names_get_a_note(name):
    (note,) = resolve(env={name: "1"}, machine="generic").notes
    assert note.startswith(f"{name}=1 has no effect: ")
