"""Whatever is wrong with the settings: one line that says what would work, exit 2, and nothing left behind."""

from __future__ import annotations

import os

import pytest

from tests.config.advice import ways
from tests.e2e.refused import DATA, refused, run


def case(told: str | list[str], *words: str, **settings: str):
    """One row: what must be reported, options of the command line, environment."""
    name = " ".join([*(f"{key}={value}" for key, value in settings.items()), *words])
    return pytest.param(settings, words, [told] if isinstance(told, str) else told, id=name[:70] or "nothing")


VALUES = [
    case("env TP: 'two' is not an int", TP="two"),
    case("env TP: '2,' is not an int", TP="2,"),
    case("env TP: '0x2' is not an int", TP="0x2"),
    case("env TP: 0 must be greater than 0", TP="0"),
    case("env TP: '\N{ARABIC-INDIC DIGIT TWO}' is not an int", TP="\N{ARABIC-INDIC DIGIT TWO}"),
    case("env NUM_LAYERS: -1 must be greater than 0", NLAYERS="", NUM_LAYERS="-1"),
    case("env TRAIN_ITERS: '1e30' is too large; the largest int is 2**63 - 1", TRAIN_ITERS="1e30"),
    case("env SEED: 5000000000 must be less than 4294967296", SEED="5e9"),
    case("env LR: 'fast' is not a number", LR="fast"),
    case("env LR: 'nan' is not a finite number", LR="nan"),
    case("env ADAM_BETA1: 1.0 must be less than 1", ADAM_BETA1="1"),
    case("env DIST_TIMEOUT: 1e+300 must be at most 1000000", DIST_TIMEOUT="1e300"),
    case("env DTYPE: 'bf61' is not one of fp32, bf16, fp16; did you mean bf16?", DTYPE="bf61"),
    case("env ZERO_STAGE: '4' is not one of 0, 1, 2, 3", ZERO_STAGE="4"),
    case("env ADD_BIAS: 'maybe' is not a switch; use one of 1/true/yes/on", ADD_BIAS="maybe"),
    case("env LAUNCH_WITH: 'ssh' is not one of auto, direct, local, torchrun, openmpi, mpich", LAUNCH_WITH="ssh"),
]
NAMES = [
    case(["HEADS=4 and NHEADS=8", "two names of model.num_heads", "unset one"], NHEADS="8"),
    case(["ATTENTION=flash and NO_FLASH_ATTN=1 contradict", "unset one"], ATTENTION="flash", NO_FLASH_ATTN="1"),
    case("ZERO_STAGE=0 and USE_DISTRIBUTED_OPTIMIZER=1 contr", ZERO_STAGE="0", USE_DISTRIBUTED_OPTIMIZER="1"),
    case("RECOMPUTE=none and USE_ACTIVATION_CHECKPOINTING=1", RECOMPUTE="none", USE_ACTIVATION_CHECKPOINTING="1"),
    case("NOOP=1: a dry run is `megads train --dry-run`", NOOP="1"),
    case(["no preset '8B'; known presets: 2B, ", "tiny"], MODEL_ARCH="8B"),
    case(["no preset '7c'; known presets: 2B, "], "--preset", "7c"),
    case(["--preset tiny and MODEL_ARCH=7B name different", "unset MODEL_ARCH"], "--preset", "tiny", MODEL_ARCH="7B"),
    case("MACHINE=cpuu is not known; known machines: aurora, cpu, frontier, generic", MACHINE="cpuu"),
    case("/none/envs/machines.txt: No such file or directory; MEGADS_ROOT", MACHINE="", MEGADS_ROOT="/none"),
    case("RUN_NAME='a/b' is not one folder's name; use letters", RUN_NAME="a/b"),
    case("RUN_DIR=' ' is blank; set a path", RUN_DIR=" "),
    case("RUN_DIR=~/x: '~' is expanded by a shell only; set the full path", "--set", "dir=~/x"),
    case("is too long for a path; use at most 255", RUN_DIR="x" * 300),
    case(["no preset 'a\\nb'", "known presets"], MODEL_ARCH="a\nb"),
    case(["no preset 'a\\udcff'", "known presets"], MODEL_ARCH=os.fsdecode(b"a\xff")),
]
HPZ = ("--set", "deepspeed.hpz_partition_size=2")
SAVED = ("--distribute-saved-activations",)
BOTH = ("--zero-stage", "1", "--set", "parallel.zero_stage=2")
SET = [
    case("--set parallel.tensor: expected SECTION.KEY=VALUE, for example", "--set", "parallel.tensor"),
    case("--set parallel.tensor: '' is not an int", "--set", "parallel.tensor="),
    case("given twice, as '2' and '4'", "--set", "parallel.tensor=2", "--set", "parallel.tensor=4"),
    case("--set tp=2: no setting named 'tp'; did you mean parallel.tensor?", "--set", "tp=2"),
    case("no setting named 'train.lr'; did you mean optim.lr?", "--set", "train.lr=1"),
    case("--set optim.lr: '0,1' is not a number", "--set", "optim.lr=0,1"),
    case("no machine 'moon'; known machines: aurora, cpu, frontier, generic", "--set", "machine=moon"),
    case(["unexpected extra argument (7B)", "train --help` lists"], "7B"),
    case(["No such option '--presett'", "--preset"], "--presett", "7B"),
    case(["No such option '--sequence-paralel'", "--sequence-parallel"], "--sequence-paralel"),
    case("--zero-stage: '4' is not one of 0, 1, 2, 3", "--zero-stage", "4"),
    case("--zero-stage needs a value: 0, 1, 2 or 3", "--zero-stage"),
    case(["--zero-stage and --set parallel.zero_stage give parallel.zero_stage two values, 1 and 2"], *BOTH),
    case("--zero-stage and --use-distributed-optimizer give", "--zero-stage", "2", "--use-distributed-optimizer"),
]
LAYOUT = [
    case("HEADS=4 cannot share NUM_KV_HEAD=3 key/value heads equally; use NUM_KV_HEAD=2 or", NUM_KV_HEAD="3"),
    case("HIDDEN=65 is not a multiple of HEADS=4; use HIDDEN=64, HIDDEN=72 or HEAD_DIM=16", HIDDEN="65"),
    case("env HIDDEN: 10000000000000000 must be at most 16777216", HEADS="1e15", HIDDEN="1e16", TP="3"),
    case("VOCAB_SIZE=100 is smaller than the tokenizer's 512 tokens; use VOCAB_SIZE=512", VOCAB_SIZE="100"),
    case("SEQ=64 is longer than the table of MAX_POSITIONS=32", NO_LLAMA="1", SEQ="64", MAX_POSITIONS="32"),
]
# Impossible layouts; the first change that the line names is tried through the same command.
SPLITS = [
    case("HEADS=4 cannot be split over TP=3 ranks; use TP=2 or TP=4", TP="3"),
    case("NUM_KV_HEAD=2 cannot be split over TP=4 ranks: key/value heads are not", TP="4", NUM_KV_HEAD="2"),
    case(
        "3 ranks cannot be split into TP=2 x PP=1 x SP=1 (= 2); use NGPU_PER_HOST=2 or NGPU_PER_HOST=4",
        TP="2",
        NGPU_PER_HOST="3",
    ),
    case("DP=3, but 4 ranks / (TP=1 x PP=1 x SP=1) = 4; use DP=4 MICRO_BATCH=1", DP="3", NGPU_PER_HOST="4"),
    case("PP=4 stages cannot share NLAYERS=2 layers; use PP=2, PP=1 or NLAYERS=4", PP="4"),
    case("PIPELINE_SPLIT=1,2 must list the layers of each", PP="2", PIPELINE_SPLIT="1,2"),
    case("ZERO_STAGE=2 shares gradients that the PP=2 stages", "--zero-stage", "2", PP="2", ENGINE="deepspeed"),
    case("SP=8 ranks cannot share HEADS / TP = 4 / 1 = 4 query heads", SP="8"),
    case("SEQ=33 tokens cannot be split over SP=2 ranks; use SP=1, SP=3 or SEQ=32", SP="2", SEQ="33"),
    case("SCATTER_NORMS=1 splits the SEQ / SP = 34 / 1", "--sequence-parallel", TP="4", SEQ="34"),
    case("ZERO_HPZ_PARTITION_SIZE=2 needs ZeRO 3, and ZERO_STAGE=1; use ZERO_STAGE=3", *HPZ, NGPU_PER_HOST="2"),
    case("OFFLOAD_OPTIMIZER=cpu moves the partitions of ZeRO, and", "--cpu-optimizer", ZERO_STAGE="0"),
    case("RECOMPUTE_NUM_LAYERS=3 is more than NLAYERS=2; use", "--recompute-num-layers", "3", RECOMPUTE="full"),
    case("PARTITION_ACTIVATIONS=1 splits kept inputs over the TP ranks, and TP=1", *SAVED, RECOMPUTE="full"),
]
LENGTHS = [
    case(["GLOBAL_BATCH=8 (env GLOBAL_BATCH) is not", "4 x 3 x 1 = 12; use GLOBAL_BATCH=12, "], GRAD_ACC_STEPS="3"),
    case(["GLOBAL_BATCH=10 (env GLOBAL_BATCH)", "use MICRO_BATCH=2, GLOBAL_BATCH=8"], GLOBAL_BATCH="10"),
    case(["TRAIN_TOKENS=10 (env TRAIN_TOKENS) is 0 steps", "set only one of them"], TRAIN_TOKENS="10"),
    case(["TRAIN_TOKENS=10", "less than one batch of 256 tokens"], TRAIN_TOKENS="10", TRAIN_ITERS=""),
    case("must be at most 9007199254740992", TRAIN_ITERS="1e18"),
    case(["TRAIN_ITERS=1000000000000000 (env TRAIN_ITERS)", "use a smaller TRAIN_ITERS"], TRAIN_ITERS="1e15"),
    case(["valid: the order of", "lower EVAL_ITERS"], EVAL_ITERS="1e15"),
    case("MIN_LR=1 is larger than LR=0.002; use MIN_LR=0.0002", MIN_LR="1"),
    case("LR_WARMUP_ITERS=12 takes all of the decay of 12 steps", LR_WARMUP_ITERS="12"),
    case("LOSS_SCALE=8 is for DTYPE=fp16, not fp32; use LOSS_SCALE=0", LOSS_SCALE="8"),
    case("TRAIN_SPLIT=0, VAL_SPLIT=100, TEST_SPLIT=0 leaves nothing to train on", TRAIN_SPLIT="0"),
]
HOST = [
    case("MEGADS_DEVICE=gpu: not one of nvidia, amd, intel, cpu", MEGADS_DEVICE="gpu"),
    case("MEGADS_BACKEND=nonsense: not one of ccl, gloo, mpi, nccl, xccl", MEGADS_BACKEND="nonsense"),
    case("MEGADS_BACKEND=nccl: does not serve device cpu; use gloo", MEGADS_BACKEND="nccl"),
    case("MEGADS_PEAK_TFLOPS=abc: not a positive number; set the dense TFLOP/s", MEGADS_PEAK_TFLOPS="abc"),
    case("DS_ACCELERATOR=cuda: this run is on the cpu; unset DS_ACCELERATOR", DS_ACCELERATOR="cuda"),
    case("ATTENTION=flash works on nvidia and amd devices, not on cpu; use", ATTENTION="flash", DTYPE="bf16"),
    case("LAUNCH_WITH=direct starts one rank, not 2; use LAUNCH_WITH=auto", LAUNCH_WITH="direct", TP="2"),
    case("no Open MPI mpirun on PATH; install it", LAUNCH_WITH="openmpi", TP="2", PATH=""),
    case("LAUNCH_WITH=srun starts ranks inside a SLURM job, and SLURM_JOB_ID is not set", LAUNCH_WITH="srun"),
    case("no MPICH mpiexec on PATH; install it", LAUNCH_WITH="mpich", TP="2", PATH=""),
    case("HOSTFILE=none: No such file or directory; it should have one host per line", HOSTFILE="none"),
    case("SLURM job 7 has 4 hosts and SLURM_JOB_NODELIST is not set; start", SLURM_JOB_ID="7", SLURM_NNODES="4"),
    case("m2 too, and nothing on PATH starts ranks there", SLURM_JOB_ID="7", SLURM_JOB_NODELIST="m[2-3]", PATH=""),
    case("NHOSTS=3: SLURM job 7 has 2 hosts; use", SLURM_JOB_ID="7", SLURM_JOB_NODELIST="m[2-3]", NHOSTS="3"),
    case(
        "OMPI_COMM_WORLD_RANK='one' (Open MPI) is not an integer",
        OMPI_COMM_WORLD_RANK="one",
        OMPI_COMM_WORLD_SIZE="2",
    ),
    case(["GiB of memory for 1 rank that needs", "train.force=true"], HIDDEN="65536", NLAYERS="200"),
    case("env NLAYERS: 1000000000000000 must be at most 100000", NLAYERS="1e15"),
]
PATHS = [
    case("TOKENIZER_MODEL none/Llama: no such file or folder; nothing is downloaded", TOKENIZER_MODEL="none/Llama"),
    case("TOKENIZER_MODEL ~nobody9/x: no such file", TOKENIZER_MODEL="~nobody9/x"),
    case("no such file or folder", TOKENIZER_MODEL="x" * 5000),
    case("DATA_FILE_LIST list.txt: no such file; pass a text file with", DATA_FILE_LIST="list.txt"),
    case("TOKENIZER_TYPE=NullTokenizer has no vocabulary of its own; set VOCAB_SIZE", TOKENIZER_TYPE="NullTokenizer"),
    case("DATA_FILE_LIST none.txt: no such file", DATA_FILE_LIST="none.txt", **DATA),
    case("DATA_FILE_LIST /: is a folder; pass a text file", DATA_FILE_LIST="/", **DATA),
    case("run folder /dev/null/x: Not a directory; set RUN_DIR to a folder you can write", RUN_DIR="/dev/null/x"),
    case("checkpoints in /dev/null: File exists; set CKPT_DIR to a folder you can write", CKPT_DIR="/dev/null"),
    case("/dev/null: file exists; set DATA_CACHE_PATH to a folder that can be written", DATA_CACHE_PATH="/dev/null"),
]


@pytest.mark.parametrize(("settings", "words", "told"), [*VALUES, *NAMES, *SET, *LAYOUT, *LENGTHS, *HOST, *PATHS])
def test_refused(megads, settings, words, told):
    refused(megads, *words, told=told, **settings)


@pytest.mark.parametrize(("settings", "words", "told"), SPLITS)
def test_an_impossible_layout_names_one_that_starts(megads, settings, words, told):
    line = refused(megads, *words, told=told, **settings)
    for way in ways(line):
        done = run(megads, "train", "--dry-run", *way.words(words), **{**settings, **way.variables})
        assert done.returncode == 0, (way, done.stderr)


def test_a_vendor_that_is_not_here(megads):
    masks = {"CUDA_VISIBLE_DEVICES": "-1", "ROCR_VISIBLE_DEVICES": "-1"}
    told = ["MEGADS_DEVICE=nvidia: no such device is visible on this host; it shows", "cpu"]
    refused(megads, told=told, MEGADS_DEVICE="nvidia", **masks)


def test_a_model_that_does_not_fit_can_be_forced(megads):
    large = {"HIDDEN": "65536", "NLAYERS": "200"}
    refused(megads, "--dry-run", told=["GiB of memory"], **large)
    forced = run(megads, "train", "--dry-run", "--set", "train.force=true", **large)
    assert forced.returncode == 0, forced.stderr
    assert "model.hidden_size" in forced.stdout
