"""Wasteful choices are reported, not refused; ordinary ones say nothing."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.plan.remarks import remarks

MODEL = {"NLAYERS": "8", "HIDDEN": "64", "HEADS": "8", "SEQ": "64", "TRAIN_ITERS": "10", "DTYPE": "fp32"}


def _run(env: dict[str, str], ranks: int, machine: str = "generic") -> RunConfig:
    resolved = resolve(env={**MODEL, **env}, overrides={"machine": machine}, machine=machine)
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=1000).run


DEEPSPEED = {"ENGINE": "deepspeed"}


@pytest.mark.parametrize(
    ("ranks", "env", "told"),
    [
        (
            4,
            {"PP": "4", "GRAD_ACC_STEPS": "6"},
            "GRAD_ACC_STEPS=6 micro-batches for PP=4 stages: each is idle for 33% of a step;",
        ),
        (4, {"PP": "4", "GRAD_ACC_STEPS": "6"}, "; GRAD_ACC_STEPS=12 or more would bring it to 20%"),
        (4, {"PP": "4", "GRAD_ACC_STEPS": "2"}, "each is idle for 60% of a step and some stages are always idle;"),
        (
            2,
            {"PP": "2", "VIRTUAL_STAGES": "2", "GRAD_ACC_STEPS": "11"},
            "GRAD_ACC_STEPS=11 is not a multiple of PP=2: with VIRTUAL_STAGES=2 the first stage keeps 6 chunks of "
            "micro-batches, 5 with GRAD_ACC_STEPS=10",
        ),
        (
            3,
            {"SP": "3", "SEQ": "96"},
            "SP=3 ranks share 8 query heads unevenly: attention waits for those with 3; SP=2 wo",
        ),
        (1, {"SCATTER_NORMS": "1"}, "SCATTER_NORMS=1 has no effect with TP=1"),
        (1, {"TP_OVERLAP": "4"}, "TP_OVERLAP=4 has no effect with TP=1"),
        (2, {"DDP_IMPL": "torch", "ZERO_STAGE": "0", **DEEPSPEED}, "DDP_IMPL=torch has no effect with ZERO_STAGE=0"),
        (
            2,
            {"DDP_IMPL": "torch", "PP": "2", "GRAD_ACC_STEPS": "9", **DEEPSPEED},
            "DDP_IMPL=torch has no effect with PP=2",
        ),
        (
            2,
            {"DDP_IMPL": "torch", "DTYPE": "bf16", "ZERO_STAGE": "1", **DEEPSPEED},
            "DDP_IMPL=torch has no effect with DTYPE=bf16 and ZERO_STAGE=1: DeepSpeed's BF16_Optimizer",
        ),
        (2, {"WALL_CLOCK_BREAKDOWN": "1", "PP": "2", "GRAD_ACC_STEPS": "9"}, "BREAKDOWN=1 has no effect with PP=2"),
        (4, {"ZERO_STAGE": "3", "ZERO_HPZ_PARTITION_SIZE": "4"}, "ZERO_HPZ_PARTITION_SIZE=4 is all of DP x SP"),
        (
            1,
            {"GLOBAL_BATCH": "8", "RAMPUP_BATCH_SIZE": "2 2 100"},
            "reaches GLOBAL_BATCH=8 after 31 iterations, and TRAIN_ITERS=10 ends before that",
        ),
        (1, {"SKIP_TRAIN_ITERATION_RANGE": "2-3 9-12"}, "9-12 reaches beyond the last of TRAIN_ITERS=10"),
        (2, {"DTYPE": "bf16", "ZERO_STAGE": "0", **DEEPSPEED}, "ZERO_STAGE=0 with DTYPE=bf16 runs as ZeRO 1"),
        (
            1,
            {"DTYPE": "bf16", "GRAD_ACCUM_DTYPE": "bf16", "GRAD_ACC_STEPS": "4"},
            "GRAD_ACCUM_DTYPE=bf16 rounds at each",
        ),
        (2, {"COMMUNICATION_DATA_TYPE": "bf16"}, "COMMUNICATION_DATA_TYPE=bf16 rounds gradients"),
        (
            1,
            {"OPT": "adam"},
            "OPT=adam adds WEIGHT_DECAY=0.1 to the gradient, where the moments scale it; what Megatron",
        ),
        (1, {"OPT": "lion", "ADAM_BETA2": "0.5"}, "ADAM_BETA2=0.5: ignored with OPT=lion"),
        (1, {"LION_BETA1": "0.5"}, "LION_BETA1=0.5: ignored with OPT=adamw"),
        (1, {"TOKEN_TYPES": "2"}, "TOKEN_TYPES=2: ignored with MODEL_FAMILY=llama"),
        (
            1,
            {"MASK_PROB": "0.3", "BINARY_HEAD": "0"},
            "BINARY_HEAD=False, MASK_PROB=0.3: ignored with MODEL_FAMILY=",
        ),
        (1, {"RELATIVE_BUCKETS": "8"}, "RELATIVE_BUCKETS=8: ignored with POSITION_EMBEDDING=rope"),
        (
            1,
            {"POSITION_EMBEDDING": "learned", "ROPE_THETA": "9", "ROPE_SCALING": "linear"},
            "ROPE_THETA=9.0, ROPE_SCALING=linear: ignored with POSITION_EMBEDDING=learned",
        ),
        (1, {"ROPE_SCALING_FACTOR": "2"}, "ROPE_SCALING_FACTOR=2.0: ignored with ROPE_SCALING=none"),
        (
            1,
            {"ROPE_SCALING": "linear", "ROPE_SCALING_FACTOR": "2", "ROPE_LOW_FREQ_FACTOR": "2"},
            "ROPE_LOW_FREQ_FACTOR=2.0: ignored with ROPE_SCALING=linear",
        ),
        (1, {"LOSS_SCALE_WINDOW": "7"}, "LOSS_SCALE_WINDOW=7: ignored with DTYPE=fp32"),
        (1, {"SPIKE_FACTOR": "3"}, "SPIKE_FACTOR=3.0: ignored with ON_SPIKE=none"),
        (
            1,
            {"LR_CONSTANT_ITERS": "5", "LR_TIMESCALE": "3"},
            "LR_CONSTANT_ITERS=5, LR_TIMESCALE=3.0: ignored with LR",
        ),
        (1, {"LR_COOLDOWN_STYLE": "linear"}, "LR_COOLDOWN_STYLE=linear: ignored with LR_DECAY_STYLE=cosine"),
        (1, {"WEIGHT_DECAY_TOKENS": "9"}, "WEIGHT_DECAY_TOKENS=9: ignored with WEIGHT_DECAY_INCR_STYLE=constant"),
        (1, {"PROFILE": "11-12"}, "PROFILE traces from step 11 on, and TRAIN_ITERS=10: no trace will be written"),
        (1, {"FLOPS_PROFILE": "1", "FLOPS_PROFILE_STEP": "11"}, "FLOPS_PROFILE_STEP=11 is after TRAIN_ITERS=10"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wasteful_choice_is_one_line(ranks, env, told):
    (line,) = remarks(_run(env, ranks), ranks)
    assert told in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "env",
    [
        {"OPT": "lion", "LION_BETA2": "0.5"},
        {"ROPE_SCALING": "llama3", "ROPE_SCALING_FACTOR": "2", "ROPE_LOW_FREQ_FACTOR": "2"},
        {"DEFAULTS": "megatron", "POSITION_EMBEDDING": "learned"},
        {"OPT": "muon", "ADAM_BETA2": "0.5", "MUON_NS_STEPS": "3"},
        {"ON_SPIKE": "skip", "SPIKE_FACTOR": "3"},
        {"DTYPE": "fp16", "LOSS_SCALE_WINDOW": "7"},
        {"LR_DECAY_STYLE": "wsd", "LR_COOLDOWN_STYLE": "linear"},
        {"WEIGHT_DECAY_INCR_STYLE": "linear", "START_WEIGHT_DECAY": "0.01", "WEIGHT_DECAY_ITERS": "5"},
    ],
)
def test_what_is_looked_at_is_not_told(env):
    assert remarks(_run(env, 1), 1) == ()


def test_two_hosts_and_a_copy_that_reaches_over_both():
    env = {"ZERO_STAGE": "3", "ZERO_HPZ_PARTITION_SIZE": "4"}
    resolved = resolve(env={**MODEL, **env}, machine="generic")
    run = derive(resolved, num_hosts=4, ranks_per_host=2, vocab_size=1000).run
    assert "reaches beyond the 2 ranks of a host" in remarks(run, 8)[0]


def test_offload_on_a_host_without_accelerators():
    (line,) = remarks(_run({"CPU_OPTIMIZER": "1"}, 1, "cpu"), 1)
    assert line == "OFFLOAD_OPTIMIZER=cpu saves nothing on a host without accelerators"


@pytest.mark.parametrize(
    ("ranks", "env"),
    [
        (1, {}),
        (4, {"PP": "2", "GRAD_ACC_STEPS": "4", "DTYPE": "bf16"}),
        (8, {"TP": "2", "SP": "4", "SCATTER_NORMS": "1"}),
        (4, {"ZERO_STAGE": "3", "ZERO_HPZ_PARTITION_SIZE": "2", "DDP_IMPL": "torch"}),
        (2, {"CPU_OPTIMIZER": "1"}),
    ],
    ids=lambda value: str(value)[:50],
)
def test_ordinary_layouts_raise_nothing(ranks, env):
    assert remarks(_run(env, ranks), ranks) == ()


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"TOKENIZER_MODEL": "tok"}, "TOKENIZER_MODEL=tok without data: the demo corpus has ids of its own tokenizer"),
        ({"TOKENIZER_MODEL": "tok", "DATA_PATH": "a"}, ""),
        (
            {"VALID_DATA_FILE_LIST": "v", "EVAL_INTERVAL": "0"},
            "VALID_DATA_FILE_LIST=v is not read with EVAL_INTERVAL=0",
        ),
        ({"VALID_DATA_FILE_LIST": "v", "EVAL_ITERS": "0"}, "VALID_DATA_FILE_LIST=v is not read with EVAL_ITERS=0"),
        ({"TEST_DATA_FILE_LIST": "t", "EVAL_ITERS": "0"}, "TEST_DATA_FILE_LIST=t is not read with EVAL_ITERS=0"),
        ({"VALID_DATA_FILE_LIST": "v", "TEST_DATA_FILE_LIST": "t", "EVAL_INTERVAL": "5"}, ""),
    ],
)
def test_what_is_named_and_not_read_is_told(env, told):
    lines = remarks(_run(env, 1), 1)
    assert [told in line for line in lines] == [True] * bool(told)
