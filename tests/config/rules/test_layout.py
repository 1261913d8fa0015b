"""Every layout that cannot work is refused with one line, and every change that line names works."""

from __future__ import annotations

from collections.abc import Sequence

import click
import pytest

from megads.cli.train import train
from megads.config.derive import attempts, derive
from megads.config.rules.checks import check
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from tests.config.advice import attempt_from, ways

# The model has 4 layers, 8 heads, 4 key/value heads, an MLP of 192 and 64 tokens.
MODEL = {"NLAYERS": "4", "HIDDEN": "64", "HEADS": "8", "NUM_KV_HEAD": "4", "FFN_HIDDEN_SIZE": "192", "SEQ": "64"}
MODEL |= {"GLOBAL_BATCH": "48", "MICRO_BATCH": "1", "TRAIN_ITERS": "10"}
FULL = {"RECOMPUTE": "full"}
DEEPSPEED = {"ENGINE": "deepspeed"}

# (ranks, settings, what is reported): told is the beginning of the line, and words of its advice.
REFUSED = [
    # Ranks and degrees.
    (6, {"TP": "4"}, "6 ranks cannot be split into TP=4 x PP=1 x SP=1 (= 4); use TP=2, TP=1 or NGPU_PER_HOST=4"),
    (8, {"TP": "2", "PP": "3"}, "8 ranks cannot be split into TP=2 x PP=3 x SP=1 (= 6); use PP=4"),
    (8, {"SP": "3"}, "8 ranks cannot be split into TP=1 x PP=1 x SP=3 (= 3); use SP=4"),
    (2, {"TP": "2", "PP": "2", "SP": "2"}, "2 ranks cannot be split into TP=2 x PP=2 x SP=2 (= 8); use "),
    (4, {"DP": "3"}, "DP=3, but 4 ranks / (TP=1 x PP=1 x SP=1) = 4; use DP=4 or NGPU_PER_HOST=3"),
    (4, {"DP": "4", "TP": "2"}, "DP=4, but 4 ranks / (TP=2 x PP=1 x SP=1) = 2; use DP=2 or NGPU_PER_HOST=8"),
    (
        2,
        {"PP": "2", "PIPELINE_SPLIT": "\u00b2,2"},
        "PIPELINE_SPLIT='\u00b2,2' is not layers, ends, parameters or a list",
    ),
    (1, {"DISTRIBUTE_SAVED_ACTIVATIONS": "1"}, "PARTITION_ACTIVATIONS=1 needs RECOMPUTE=full, and RECOMPUTE=none; use"),
    (2, {"LAUNCH_WITH": "direct"}, "LAUNCH_WITH=direct starts one rank, not 2; use LAUNCH_WITH=auto"),
    # Tensor parallelism.
    (3, {"TP": "3", "FFN_HIDDEN_SIZE": "192"}, "HEADS=8 cannot be split over TP=3 ranks; use "),
    (8, {"TP": "8"}, "NUM_KV_HEAD=4 cannot be split over TP=8 ranks: key/value heads are not replicated; use TP=4"),
    (4, {"TP": "4", "FFN_HIDDEN_SIZE": "190"}, "FFN_HIDDEN_SIZE=190 cannot be split over TP=4 ranks; use TP=2"),
    (4, {"TP": "4", "VOCAB_MULTIPLE": "3"}, "the vocabulary of 1000, padded to 1002 (VOCAB_MULTIPLE=3), cannot be"),
    # Pipeline.
    (8, {"PP": "8"}, "PP=8 stages cannot share NLAYERS=4 layers; use PP=4"),
    (8, {"PP": "8", "PIPELINE_SPLIT": "1,1,1,1,0,0,0,0"}, "PP=8 stages cannot share NLAYERS=4 layers; use PP=4 "),
    (2, {"PP": "2", "PIPELINE_SPLIT": "1,1,2"}, "PIPELINE_SPLIT=1,1,2 must list the layers of each of PP=2"),
    (3, {"PP": "3", "PIPELINE_SPLIT": "2,2"}, "PIPELINE_SPLIT=2,2 must list the layers of each of PP=3"),
    (2, {"PP": "2", "PIPELINE_SPLIT": "3,3"}, "PIPELINE_SPLIT=3,3 must list the layers of each of PP=2"),
    (2, {"PP": "2", "PIPELINE_SPLIT": "-1,5"}, "PIPELINE_SPLIT=-1,5 must list the layers"),
    (3, {"PP": "3", "PIPELINE_SPLIT": "2,0,2"}, "PIPELINE_SPLIT=2,0,2 must list the layers of each of PP=3"),
    (2, {"PP": "2", "PIPELINE_SPLIT": "even"}, "PIPELINE_SPLIT='even' is not layers, ends, parameters or a list"),
    (1, {"PIPELINE_SPLIT": "2,2"}, "PIPELINE_SPLIT=2,2 must list the layers of each of PP=1 stages"),
    (2, {"PP": "2", "NLAYERS": "100000"}, "NLAYERS=100000 layers are too many to split into PP=2 stages"),
    (
        2,
        {"PP": "2", "ZERO_STAGE": "2", **DEEPSPEED},
        "ZERO_STAGE=2 shares gradients that the PP=2 stages of a pipeline keep",
    ),
    (
        4,
        {"PP": "4", "ZERO_STAGE": "3", **DEEPSPEED},
        "ZERO_STAGE=3 shares weights that the PP=4 stages of a pipeline keep",
    ),
    # Ulysses and scattered norms.
    (3, {"SP": "3"}, "SEQ=64 tokens cannot be split over SP=3 ranks; use "),
    (8, {"SP": "4", "TP": "4"}, "8 ranks cannot be split into TP=4 x PP=1 x SP=4 (= 16); use "),
    (16, {"SP": "16"}, "SP=16 ranks cannot share HEADS / TP = 8 / 1 = 8 query heads: each needs one; use SP=8"),
    (
        16,
        {"SP": "4", "TP": "4"},
        "SP=4 ranks cannot share HEADS / TP = 8 / 4 = 2 query heads: each needs one; use SP=2",
    ),
    (
        4,
        {"TP": "4", "SCATTER_NORMS": "1", "SEQ": "66"},
        "SCATTER_NORMS=1 splits the SEQ / SP = 66 / 1 tokens per rank",
    ),
    (4, {"TP": "2", "SP": "2", "SCATTER_NORMS": "1", "SEQ": "66"}, "SCATTER_NORMS=1 splits the SEQ / SP = 66 / 2 tok"),
    (
        4,
        {"TP": "2", "TP_OVERLAP_WITH": "symmetric_memory"},
        "TP_OVERLAP_WITH=symmetric_memory fuses the gathers and scatters of SCATTER_NORMS=1, and SCATTER_NORMS=0 has "
        "none; use TP_OVERLAP_WITH=collectives or SCATTER_NORMS=1",
    ),
    (
        4,
        {"TP_OVERLAP_WITH": "symmetric_memory", "SCATTER_NORMS": "1"},
        "TP_OVERLAP_WITH=symmetric_memory fuses the gathers and scatters of SCATTER_NORMS=1, and TP=1 has none; use",
    ),
    # ZeRO and offload.
    (2, {"ZERO_HPZ_PARTITION_SIZE": "2"}, "ZERO_HPZ_PARTITION_SIZE=2 needs ZeRO 3, and ZERO_STAGE=1; use ZERO_STAGE=3"),
    (
        6,
        {"ZERO_HPZ_PARTITION_SIZE": "4", "ZERO_STAGE": "3"},
        "ZERO_HPZ_PARTITION_SIZE=4 does not divide the 6 ranks (DP x SP) that share the weights; use "
        "ZERO_HPZ_PARTITION_SIZE=3 or ZERO_HPZ_PARTITION_SIZE=2",
    ),
    (
        4,
        {"ZERO_HPZ_PARTITION_SIZE": "2", "ZERO_STAGE": "3", "OFFLOAD_PARAMS": "cpu"},
        "ZERO_HPZ_PARTITION_SIZE=2 keeps weights on the device that OFFLOAD_PARAMS=cpu takes from it; use ",
    ),
    (
        2,
        {"CPU_OPTIMIZER": "1", "ZERO_STAGE": "0"},
        "OFFLOAD_OPTIMIZER=cpu moves the partitions of ZeRO, and ZERO_STAGE=0",
    ),
    (
        2,
        {"OFFLOAD_PARAMS": "cpu"},
        "OFFLOAD_PARAMS=cpu moves the partitions of ZeRO 3, and ZERO_STAGE=1; use ZERO_STAGE=3",
    ),
    (
        2,
        {"OFFLOAD_OPTIMIZER": "nvme", "NVME_PATH": "/nvme"},
        "OFFLOAD_OPTIMIZER=nvme needs ZeRO 3, and ZERO_STAGE=1; use OFFLOAD_OPTIMIZER=cpu or ZERO_STAGE=3",
    ),
    (
        2,
        {"OFFLOAD_OPTIMIZER": "nvme", "ZERO_STAGE": "3"},
        "OFFLOAD_OPTIMIZER=nvme has no NVME_PATH; use OFFLOAD_OPTIMIZER=cpu or set NVME_PATH",
    ),
    (
        2,
        {"OFFLOAD_PARAMS": "nvme", "ZERO_STAGE": "3"},
        "OFFLOAD_PARAMS=nvme has no NVME_PATH; use OFFLOAD_PARAMS=cpu or set NVME_PATH",
    ),
    (
        2,
        {"CPU_OPTIMIZER": "1", "ZERO_FORCE_DS_CPU_OPTIMIZER": "1"},
        "ZERO_FORCE_DS_CPU_OPTIMIZER=1 demands an optimizer that DeepSpeed compiles on every host; use ",
    ),
    (
        1,
        {"GRAD_ACCUM_DTYPE": "bf16", "DTYPE": "fp32"},
        "GRAD_ACCUM_DTYPE=bf16 cannot sum gradients of DTYPE=fp32; use",
    ),
    (
        1,
        {"GRAD_ACCUM_DTYPE": "fp16", "DTYPE": "bf16"},
        "GRAD_ACCUM_DTYPE=fp16 cannot sum gradients of DTYPE=bf16; use",
    ),
    (1, {"COMMUNICATION_DATA_TYPE": "fp16", "DTYPE": "bf16"}, "COMMUNICATION_DATA_TYPE=fp16 loses gradients of DTYPE="),
    # Recomputation.
    (
        1,
        {"RECOMPUTE_NUM_LAYERS": "2"},
        "RECOMPUTE_NUM_LAYERS=2 needs RECOMPUTE=full, and RECOMPUTE=none; use RECOMPUTE=f",
    ),
    (
        1,
        {"RECOMPUTE_METHOD": "block"},
        "RECOMPUTE_METHOD=block needs RECOMPUTE=full, and RECOMPUTE=none; use RECOMPUTE=fu",
    ),
    (
        1,
        {"RECOMPUTE_ACTIVATIONS": "1", "RECOMPUTE_METHOD": "uniform"},
        "RECOMPUTE_METHOD=uniform (env RECOMPUTE_METHOD) needs RECOMPUTE=full, and RECOMPUTE=selective (env RECOMP",
    ),
    (
        1,
        {"DEEPSPEED_ACTIVATION_CHECKPOINTING": "1"},
        "RECOMPUTE_WITH=deepspeed has nothing to recompute, and RECOMPUTE=",
    ),
    (
        1,
        {"CPU_CHECKPOINTING": "1"},
        "CPU_CHECKPOINTING=1 needs RECOMPUTE=full, and RECOMPUTE=none; use RECOMPUTE=full or CPU",
    ),
    (
        2,
        {"TP": "2", "RECOMPUTE": "selective", "RECOMPUTE_WITH": "deepspeed", "PARTITION_ACTIVATIONS": "1"},
        "PARTITION_ACTIVATIONS=1 needs RECOMPUTE=full, and RECOMPUTE=selective; use RECOMPUTE=full or PARTITION_ACTIV",
    ),
    (
        1,
        {**FULL, "PROFILE_BACKWARD": "1"},
        "PROFILE_BACKWARD=1 needs DeepSpeed's checkpoint function, and RECOMPUTE_WITH=t",
    ),
    (
        1,
        {**FULL, "DISTRIBUTE_SAVED_ACTIVATIONS": "1"},
        "PARTITION_ACTIVATIONS=1 splits kept inputs over the TP ranks, and T",
    ),
    (
        2,
        {**FULL, "TP": "2", "DISTRIBUTE_SAVED_ACTIVATIONS": "1", "SCATTER_NORMS": "1"},
        "PARTITION_ACTIVATIONS=1 splits what SCATTER_NORMS=1 has split already; use DISTRIBUTE_SAVED_ACTIVATIONS=0 or ",
    ),
    (
        2,
        {**FULL, "RECOMPUTE_WITH": "deepspeed", "CONTIGUOUS_CHECKPOINTING": "1", "TP": "2"},
        "CONTIGUOUS_CHECKPOINTING=1 is a buffer for PARTITION_ACTIVATIONS=1, which is off; use PARTITION_ACTIVATIONS=1",
    ),
    (
        1,
        {**FULL, "RECOMPUTE_NUM_LAYERS": "5"},
        "RECOMPUTE_NUM_LAYERS=5 is more than NLAYERS=4; use RECOMPUTE_NUM_LAYERS=4",
    ),
    (
        2,
        {**FULL, "PP": "2", "RECOMPUTE_METHOD": "block", "RECOMPUTE_NUM_LAYERS": "3"},
        "RECOMPUTE_NUM_LAYERS=3 is more than the 2 layers of a stage; use RECOMPUTE_NUM_LAYERS=2 or ",
    ),
    # Two defects: the advice is what cures the one that is reported.
    (
        8,
        {"TP": "8", "RECOMPUTE_NUM_LAYERS": "2"},
        "NUM_KV_HEAD=4 cannot be split over TP=8 ranks: key/value heads are n",
    ),
    # More ranks than degrees that a preset asks for.
    (
        8,
        {"PP": "2", "TP": "2", "SP": "2", "ZERO_STAGE": "3", **DEEPSPEED},
        "ZERO_STAGE=3 shares weights that the PP=2 stages of a pip",
    ),
]

# Uneven and unusual, but right.
ACCEPTED = [
    (3, {"PP": "3"}),
    (3, {"PP": "3", "PIPELINE_SPLIT": "0,4,0"}),
    (3, {"SP": "3", "SEQ": "66"}),
    (8, {"SP": "8"}),
    (8, {"TP": "4", "SP": "2"}),
    (8, {"TP": "2", "SP": "4", "SCATTER_NORMS": "1"}),
    (1, {"SCATTER_NORMS": "1"}),
    (4, {"PP": "2", "TP": "2", "DDP_IMPL": "torch"}),
    (4, {"ZERO_STAGE": "3", "ZERO_HPZ_PARTITION_SIZE": "2", "TP": "2"}),
    (4, {"ZERO_STAGE": "3", "ZERO_HPZ_PARTITION_SIZE": "2", "SP": "2"}),
    (2, {"CPU_OPTIMIZER": "1", "ZERO_STAGE": "1"}),
    (2, {"ZERO_STAGE": "3", "OFFLOAD_PARAMS": "cpu", "CPU_OPTIMIZER": "1"}),
    (1, {"DTYPE": "bf16", "GRAD_ACCUM_DTYPE": "bf16", "COMMUNICATION_DATA_TYPE": "bf16"}),
    (1, {"DTYPE": "fp16", "GRAD_ACCUM_DTYPE": "fp16", "COMMUNICATION_DATA_TYPE": "fp16"}),
    (1, {"ACT_CKPT_NUM_LAYERS": "1"}),
    (1, {"RECOMPUTE": "selective", "RECOMPUTE_WITH": "deepspeed"}),
    (2, {**FULL, "TP": "2", "DISTRIBUTE_SAVED_ACTIVATIONS": "1", "CONTIGUOUS_CHECKPOINTING": "1"}),
    (2, {**FULL, "PP": "2", "PIPELINE_SPLIT": "1,3", "RECOMPUTE_METHOD": "block", "RECOMPUTE_NUM_LAYERS": "3"}),
]


def _prepare(env: dict[str, str], ranks: int, words: Sequence[str] = ()) -> RunConfig:
    """Do what ``megads train`` does, on one host whose number of ranks only the user changes."""
    context = click.Context(train)
    train.parse_args(context, list(words))
    overrides, flags = dict(pair.split("=", 1) for pair in context.params["pairs"]), context.params["flags"]
    resolved = resolve(env={**MODEL, **env}, overrides=overrides, flags=flags, machine="generic")

    def ranks_of(run: RunConfig) -> tuple[int, int]:
        return 1, run.launch.ranks_per_host or ranks

    hosts, each = ranks_of(resolved.run)
    run = derive(resolved, num_hosts=hosts, ranks_per_host=each, vocab_size=1000).run
    check(run, hosts * each, attempts(resolved, ranks_of, 1000))
    return run


@pytest.mark.parametrize(("ranks", "env", "told"), REFUSED, ids=lambda value: str(value)[:70])
def test_an_impossible_layout_is_refused_and_each_change_it_names_works(ranks, env, told):
    with pytest.raises(ConfigError) as caught:
        _prepare(env, ranks)
    message = str(caught.value)
    assert message.startswith(told)
    assert "\n" not in message
    assert len(message) < 400
    named = ways(message)
    assert named, message
    for way in named:
        if told.startswith("NUM_KV_HEAD") and "RECOMPUTE_NUM_LAYERS" in env:
            with pytest.raises(ConfigError, match=r"^RECOMPUTE_NUM_LAYERS=2 needs RECOMPUTE=full"):
                _prepare({**env, **way.variables}, ranks)
        else:
            _prepare({**env, **way.variables}, ranks)


@pytest.mark.parametrize(("ranks", "env"), ACCEPTED, ids=lambda value: str(value)[:70])
def test_an_unusual_layout_is_accepted(ranks, env):
    _prepare(env, ranks)


def test_at_least_thirty_five_layouts_are_told_apart():
    beginnings = {told.split(";")[0] for _, _, told in REFUSED}
    assert len(beginnings) >= 35


def test_without_knowing_what_the_user_gave_the_advice_keeps_the_ranks():
    resolved = resolve(env={**MODEL, "TP": "8"}, machine="generic")
    run = derive(resolved, num_hosts=1, ranks_per_host=8, vocab_size=1000).run
    with pytest.raises(ConfigError, match=r"over TP=8 ranks.*; use TP=4, TP=2 or NUM_KV_HEAD=8$"):
        check(run, 8, attempt_from(run, 8))


# (options, what is reported): the advice speaks the words that were used.
WORDS = [
    (
        ["--zero-stage", "2", "--pipeline-model-parallel-size", "2", "--set", "engine.kind=deepspeed"],
        "--zero-stage=1, --pipeline-model-parallel-size=1 or --set engine.kind=native",
    ),
    (
        ["--set", "parallel.zero_stage=3", "--set", "parallel.pipeline=2", "--set", "engine.kind=deepspeed"],
        "--set parallel.zero_stage=1, --set par",
    ),
    (["--cpu-optimizer", "--zero-stage", "0"], "--zero-stage=1 or drop --cpu-optimizer"),
    (
        ["--deepspeed-activation-checkpointing"],
        "RECOMPUTE=full, RECOMPUTE=selective or drop --deepspeed-activation-check",
    ),
    (
        ["--recompute-activations", "--set", "recompute.method=uniform"],
        "RECOMPUTE=full and drop --recompute-activations",
    ),
]


@pytest.mark.parametrize(("words", "told"), WORDS, ids=lambda value: str(value)[:50])
def test_the_advice_speaks_the_words_that_were_used(words, told):
    with pytest.raises(ConfigError) as caught:
        _prepare({}, 2, words)
    message = str(caught.value)
    assert f"; use {told}" in message
    for way in ways(message):
        _prepare(way.variables, 2, way.words(words))
