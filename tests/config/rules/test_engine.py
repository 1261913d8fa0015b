"""Rules of DeepSpeed and of recomputation: what breaks each, and the first way out."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.rules import engine
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve


def broken(rule: str, **env: str) -> list[tuple[str, dict]]:
    asked = resolve("tiny", env={"TRAIN_ITERS": "10", **env}, machine="generic")
    run: RunConfig = derive(asked, num_hosts=1, ranks_per_host=4, vocab_size=500).run
    return [(each.text, dict(next(iter(each.ways)))) for each in getattr(engine, rule)(run, 4)]


@pytest.mark.parametrize(
    ("rule", "env", "words", "way"),
    [
        (
            "choice",
            {"ENGINE": "native", "OFFLOAD_PARAMS": "cpu", "ZERO_STAGE": "3"},
            "ENGINE=native does not do OFFLOAD_PARAMS=cpu (weights off the device)",
            {engine.ENGINE: "deepspeed"},
        ),
        ("hpz", {"ZERO_HPZ_PARTITION_SIZE": "2"}, "needs ZeRO 3, and ZERO_STAGE=1", {engine.ZERO: 3}),
        (
            "hpz",
            {"ZERO_HPZ_PARTITION_SIZE": "3", "ZERO_STAGE": "3"},
            "does not divide the 4 ranks (DP x SP)",
            {engine.HPZ: 2},
        ),
        ("offload", {"OFFLOAD_PARAMS": "cpu"}, "moves the partitions of ZeRO 3, and ZERO_STAGE=1", {engine.ZERO: 3}),
        ("offload", {"CPU_OPTIMIZER": "1", "ZERO_STAGE": "0"}, "moves the partitions of ZeRO", {engine.ZERO: 1}),
        (
            "offload",
            {"OFFLOAD_OPTIMIZER": "nvme", "ZERO_STAGE": "3"},
            "OFFLOAD_OPTIMIZER=nvme has no NVME_PATH",
            {engine.OPTIMIZER: "cpu"},
        ),
        (
            "precision",
            {"GRAD_ACCUM_DTYPE": "bf16", "DTYPE": "fp16"},
            "GRAD_ACCUM_DTYPE=bf16 cannot sum gradients of DTYPE=fp16",
            {"deepspeed.grad_accum_dtype": "fp32"},
        ),
        ("recompute", {"RECOMPUTE_WITH": "deepspeed"}, "has nothing to recompute", {engine.KIND: "full"}),
        (
            "recompute",
            {"RECOMPUTE": "full", "RECOMPUTE_NUM_LAYERS": "9"},
            "RECOMPUTE_NUM_LAYERS=9 is more than NLAYERS=2",
            {engine.LAYERS: 2},
        ),
        (
            "recompute",
            {"RECOMPUTE": "full", "RECOMPUTE_WITH": "deepspeed", "CONTIGUOUS_CHECKPOINTING": "1"},
            "is a buffer for PARTITION_ACTIVATIONS=1, which is off",
            {engine.PARTITION: True},
        ),
    ],
)
def test_what_a_rule_refuses(rule, env, words, way):
    text, first = broken(rule, **env)[0]
    assert words in text
    assert first == way


@pytest.mark.parametrize("rule", engine.RULES, ids=lambda rule: rule.__name__)
def test_a_plain_run_breaks_none(rule):
    assert broken(rule.__name__) == []
