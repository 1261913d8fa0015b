"""Slips of names, and names of other toolkits."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from megads.config.sources.env_names import (
    INTERNAL,
    NO_EFFECT,
    OTHER_NAMES,
    PROGRAM_NAMES,
    REFUSED,
    SYSTEM,
    name_notes,
    refuse_unsupported,
    setting_names,
)
from megads.config.sources.presets import presets
from megads.config.sources.resolve import resolve
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


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        *(("TPP", "2", "TP"), ("PPP", "2", "PP"), ("LRR", "1e-4", "LR"), ("GAS", "8", "GRAD_ACC_STEPS")),
        *(("MBS", "4", "MICRO_BATCH"), ("BATCH_SIZE", "8", "GLOBAL_BATCH"), ("PRESET", "7B", "MODEL_ARCH")),
        *(("MODEL", "7B", "MODEL_ARCH"), ("LEARNING_RATE", "1e-4", "LR"), ("ZERO", "3", "ZERO_STAGE")),
        *(("TP_SIZE", "2", "TP"), ("N_GPUS", "4", "NGPU_PER_HOST"), ("NNODES", "2", "NHOSTS")),
    ],
)
def test_a_name_of_another_toolkit_is_named_with_the_setting_it_means(name, value, meant):
    env = {name: value}
    assert name_notes(env) == [f"{name}={value} has no effect: {name} is not a setting; use {meant}"]
    # What the line advises is accepted.
    assert resolve(env={meant: value}, machine="generic").notes == ()


def test_foreign_names_mean_settings_and_have_no_other_fate():
    names = set(setting_names())
    assert set(OTHER_NAMES.values()) <= names
    assert not set(OTHER_NAMES) & (names | set(REFUSED) | set(NO_EFFECT) | SYSTEM)


@pytest.mark.parametrize(
    ("name", "meant"), [("TTP", "TP"), ("SPP", "SP"), ("DPP", "DP"), ("SEEQ", "SEQ"), ("OPTT", "OPT"), ("LLR", "LR")]
)
def test_a_letter_typed_twice_in_a_short_name_is_a_slip(name, meant):
    assert name_notes({name: "2"}) == [f"{name} is not a setting; did you mean {meant}?"]


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({"GAS": "8"}, "GAS=8 has no effect: GAS is not a setting; use GRAD_ACC_STEPS; MEGADS_STRICT=1 rejects it: "),
        ({"NLAYER": "4"}, "NLAYER is not a setting; did you mean NLAYERS?; MEGADS_STRICT=1 rejects it: unset NLAYER"),
        ({"NCCL": "nccl"}, "NCCL=nccl has no effect: the backend follows from the device"),
    ],
)
def test_strict_mode_refuses_names_without_effect(env, line):
    with pytest.raises(ConfigError) as caught:
        resolve(env={**env, "MEGADS_STRICT": "1"}, machine="generic")
    assert str(caught.value).startswith(line)
    assert len(resolve(env={**env, "MEGADS_STRICT": "0"}, machine="generic").notes) == 1
    with pytest.raises(ConfigError, match="env MEGADS_STRICT: 'maybe' is not a switch"):
        resolve(env={**env, "MEGADS_STRICT": "maybe"}, machine="generic")


def test_unknown_variables_of_megads_are_named():
    assert name_notes({"MEGADS_STRICKT": "1"}) == ["MEGADS_STRICKT is not a setting; did you mean MEGADS_STRICT?"]
    assert name_notes({"MEGADS_QUUX": "1"}) == ["MEGADS_QUUX=1 has no effect: megads has no variable of this name"]


def test_every_variable_of_the_program_is_known():
    root = Path(__file__).parents[3]
    files = [*root.glob("megads/**/*.py"), *root.glob("*/*.sh"), *root.glob("*.sh")]
    found = {name for file in files for name in re.findall(r"\bMEGADS_[A-Z][A-Z_]*[A-Z]\b", file.read_text())}
    assert found <= {*PROGRAM_NAMES, *INTERNAL, *setting_names()}


# Recorded names of ordinary environments: inside jobs, with module systems, conda and editors.
ORDINARY = {
    "slurm": "SLURM_JOB_ID SLURM_NNODES SLURM_NTASKS SLURM_GPUS_ON_NODE SLURM_JOB_NODELIST SLURM_TASKS_PER_NODE "
    "SLURM_CPUS_ON_NODE SLURM_LOCALID SLURM_PROCID SLURM_JOB_PARTITION SLURM_TRES_PER_TASK SBATCH_ACCOUNT SRUN_DEBUG "
    "SALLOC_PARTITION SLURMD_NODENAME CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ROCR_VISIBLE_DEVICES",
    "pbs": "PBS_JOBID PBS_NODEFILE PBS_O_WORKDIR PBS_O_HOME PBS_NODENUM PBS_TASKNUM PBS_MOMPORT NCPUS PBS_ACCOUNT "
    "PBS_ENVIRONMENT PBS_QUEUE OMP_NUM_THREADS TMPDIR PBS_JOBCOOKIE PBS_O_QUEUE PBS_NP",
    "lsf": "LSB_JOBID LSB_HOSTS LSB_MCPU_HOSTS LSB_DJOB_HOSTFILE LSF_BINDIR LSF_ENVDIR BATCH_SYSTEM",
    "modules": "MODULEPATH MODULESHOME LOADEDMODULES _LMFILES_ LMOD_CMD LMOD_DIR LMOD_VERSION LMOD_SYSTEM_NAME "
    "MODULEPATH_ROOT CRAY_CPU_TARGET CRAYPE_VERSION CRAY_MPICH_DIR PE_ENV PE_PRODUCT_LIST ROCM_PATH CUDA_HOME "
    "NVHPC_ROOT MPICH_DIR PRGENV GCC_VERSION CRAY_ACCEL_TARGET PELOCAL_PRGENV SPACK_ROOT EBROOTGCC FPATH",
    "shell": "HOME USER LOGNAME SHELL TERM LANG LC_ALL PWD OLDPWD SHLVL EDITOR PAGER LESS MAIL DISPLAY HISTSIZE "
    "SSH_CLIENT SSH_CONNECTION SSH_TTY XDG_RUNTIME_DIR XDG_SESSION_ID DBUS_SESSION_BUS_ADDRESS LS_COLORS MANPATH "
    "INFOPATH PS1 COLORTERM TERM_PROGRAM GIT_ASKPASS VSCODE_IPC_HOOK_CLI LESSOPEN TZ VISUAL GPG_AGENT_INFO "
    "SCRATCH WORK PROJECT CFS DATA ARCH OSTYPE HOSTTYPE MACHTYPE SYSTEM NERSC_HOST LMOD_SITE_NAME OLCF_HOME MEMBERWORK "
    "COLUMNS LINES GROUP CPU VENDOR REMOTEHOST ACCOUNT QUEUE",
    "python": "CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_EXE CONDA_SHLVL VIRTUAL_ENV PYTHONPATH PYTHONUSERBASE "
    "PIP_CACHE_DIR "
    "HF_HOME HF_HUB_OFFLINE TRANSFORMERS_CACHE TRITON_CACHE_DIR TORCH_HOME TORCH_EXTENSIONS_DIR MPLCONFIGDIR "
    "MPLBACKEND "
    "JUPYTERHUB_USER KMP_AFFINITY KMP_BLOCKTIME MKL_NUM_THREADS OPENBLAS_NUM_THREADS NUMEXPR_MAX_THREADS WANDB_API_KEY "
    "TOKENIZERS_PARALLELISM PYTORCH_CUDA_ALLOC_CONF TF_CPP_MIN_LOG_LEVEL",
    "launchers": "OMPI_COMM_WORLD_SIZE PMI_RANK PMIX_RANK PALS_RANKID RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID FLUX_URI HYDRA_LAUNCHER MPIEXEC_TIMEOUT GROUP_RANK NODE_RANK",
    "ci": "CI GITHUB_ACTIONS GITHUB_SHA RUNNER_OS GITLAB_CI CI_JOB_ID BUILD_NUMBER JENKINS_HOME JOB_NAME NODE_NAME "
    "EXECUTOR_NUMBER WORKSPACE HOSTNAME container DEBIAN_FRONTEND",
    "fabric": "NCCL_DEBUG NCCL_SOCKET_IFNAME FI_PROVIDER FI_CXI_DEFAULT_CQ_SIZE CCL_WORKER_COUNT ZE_AFFINITY_MASK "
    "ZE_FLAT_DEVICE_HIERARCHY UCX_TLS HSA_FORCE_FINE_GRAIN_PCIE MIOPEN_USER_DB_PATH GLOO_SOCKET_IFNAME ONEAPI_ROOT "
    "I_MPI_ROOT INTELFPGAOCLSDKROOT SETVARS_COMPLETED TBBROOT MKLROOT DPL_ROOT",
}


@pytest.mark.parametrize("kind", ORDINARY)
@pytest.mark.parametrize("value", ["1", "/usr/bin/cp"])
def test_ordinary_environments_raise_no_false_alarm(kind, value):
    assert name_notes(dict.fromkeys(ORDINARY[kind].split(), value)) == []


def test_short_names_with_words_that_are_no_value_of_the_setting_are_left_alone():
    assert name_notes({"CP": "/bin/cp", "BS": "on", "WD": "/home/me"}) == []


def test_a_suggestion_is_alike():
    with pytest.raises(ConfigError) as caught:
        resolve(env={"LAUNCH_WITH": "mpirun"}, machine="generic")
    assert str(caught.value).endswith("; use openmpi, mpich or pals, whose mpiexec it is, or auto")
    with pytest.raises(ConfigError) as caught:
        resolve(env={"LAUNCH_WITH": "vhost"}, machine="generic")
    assert "did you mean" not in str(caught.value)
    for word in ("openmpi", "mpich", "pals", "auto"):
        assert resolve(env={"LAUNCH_WITH": word}, machine="generic").run.launch.launch_with == word


@pytest.mark.parametrize(
    ("text", "value"), [("1B", 10**9), ("4.67T", 4_670_000_000_000), ("300b", 3 * 10**11), ("1_000M", 10**9)]
)
def test_budgets_may_have_a_unit(text, value):
    assert resolve(env={"TRAIN_TOKENS": text}, machine="generic").run.train.train_tokens == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("4K", "env SEQ: '4K' may be 4000 or 4096; write the number"),
        ("1.0000000001B", "'1.0000000001B' is not an int"),
        ("1G", "'1G' is not an int"),
        ("9999999999T", "is too large"),
    ],
)
def test_units_that_are_not_clear_are_refused(text, words):
    with pytest.raises(ConfigError) as caught:
        resolve(env={"SEQ": text}, machine="generic")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("word", "dtype"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32"), ("BFloat16", "bf16")]
)
def test_torchs_names_of_precisions_are_taken(word, dtype):
    run = resolve(env={"DTYPE": word, "GRAD_ACCUM_DTYPE": word}, machine="generic").run
    assert (run.train.dtype, run.deepspeed.grad_accum_dtype) == (dtype, dtype)


@pytest.mark.parametrize(
    ("name", "preset"),
    [("70b", "70B"), ("7b", "7B"), ("GPT-345m", "gpt-345M"), ("gpt_3.6b", "gpt-3.6B"), ("TINY", "tiny")],
)
def test_presets_are_found_however_they_are_spelt(name, preset):
    assert resolve(name, env={}, machine="generic").run.preset == preset


def test_no_two_presets_are_spelt_alike():
    found: dict[str, str] = {}
    for stem, layer in presets().items():
        for name in (stem, *layer.aliases):
            assert found.setdefault(name.lower().replace("-", "").replace("_", ""), stem) == stem
