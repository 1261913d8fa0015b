"""What a rank asks torch for is what the formulas say: every message on every axis, of every family and engine."""

from __future__ import annotations

import pytest

from tests.trace.dry_runs import tracer  # noqa: F401

SMALL = {"NLAYERS": "3", "HIDDEN": "64", "HEADS": "8", "NUM_KV_HEAD": "4", "FFN_HIDDEN_SIZE": "128", "SEQ": "32"}
SMALL |= {"MICRO_BATCH": "2", "GRAD_ACC_STEPS": "2", "VOCAB_SIZE": "1000"}
NATIVE, DEEPSPEED = {"ENGINE": "native"}, {"ENGINE": "deepspeed"}
PIPED = {"PP": "4", "NLAYERS": "8", "GRAD_ACC_STEPS": "4"}
T5 = {"DECODER_LAYERS": "2", "DECODER_SEQ": "16", "NLAYERS": "2", "NUM_KV_HEAD": "8"}
RETRO = {"NLAYERS": "9", "SEQ": "64", "RETRO_CHUNK_LENGTH": "8", "GRAD_ACC_STEPS": "1", "NUM_KV_HEAD": "8"}
ENDS_OF_1024 = (0, 517, 1023)

LAYOUTS = {
    "tp": ("7B", 8, (5,), NATIVE | {"TP": "4"}),
    "tp-scattered-recomputed": ("7B", 8, (5,), NATIVE | {"TP": "4", "SCATTER_NORMS": "1", "RECOMPUTE": "full"}),
    "recomputed-in-part": (
        "7B",
        8,
        (5,),
        NATIVE | {"TP": "2", "RECOMPUTE": "full", "RECOMPUTE_METHOD": "block", "RECOMPUTE_NUM_LAYERS": "1"},
    ),
    "sp-few-keys": ("7B", 8, (3,), NATIVE | {"SP": "8"}),
    "zero0-fp32": ("7B", 8, (7,), NATIVE | {"ZERO_STAGE": "0", "DTYPE": "fp32"}),
    "zero2-one-step": ("7B", 8, (2,), NATIVE | {"ZERO_STAGE": "2", "GRAD_ACC_STEPS": "1"}),
    "zero3": ("7B", 8, (2,), NATIVE | {"ZERO_STAGE": "3"}),
    "1f1b-zero3": ("7B", 8, (0, 3), NATIVE | PIPED | {"ZERO_STAGE": "3"}),
    "interleaved-zero2": ("7B", 16, (7, 15), NATIVE | PIPED | {"VIRTUAL_STAGES": "2", "ZERO_STAGE": "2"}),
    "zb-h1-tied": (
        "7B",
        8,
        (0, 7),
        NATIVE | PIPED | {"PIPELINE_SCHEDULE": "zb-h1", "UNTIE_EMBEDDINGS_AND_OUTPUT_WEIGHTS": "0"},
    ),
    "all-axes-of-1024": ("7B", 1024, ENDS_OF_1024, NATIVE | PIPED | {"TP": "2", "SP": "2", "SCATTER_NORMS": "1"}),
    "gpt-learned-positions": ("gpt-345M", 8, (0, 7), NATIVE | {"PP": "2", "TP": "2", "SCATTER_NORMS": "1"}),
    "bert": ("bert-345M", 8, (3,), NATIVE | {"TP": "2", "SP": "2", "SCATTER_NORMS": "1", "HIDDEN": "96"}),
    "t5": ("t5-220M", 8, (3,), NATIVE | T5 | {"TP": "2", "SP": "2", "RECOMPUTE": "full"}),
    "t5-scattered": ("t5-220M", 8, (1,), NATIVE | T5 | {"TP": "2", "SCATTER_NORMS": "1", "ZERO_STAGE": "3"}),
    "t5-pipeline": ("t5-220M", 8, (3, 7), NATIVE | T5 | {"PP": "4"}),
    "retro": ("retro-843M", 8, (3,), NATIVE | RETRO | {"TP": "2", "SP": "2", "RECOMPUTE": "full"}),
    "retro-scattered": ("retro-843M", 8, (7,), NATIVE | RETRO | {"TP": "2", "SP": "2", "SCATTER_NORMS": "1"}),
    "lora": ("7B", 8, (3,), NATIVE | {"TP": "2", "LORA_RANK": "4", "ZERO_STAGE": "3"}),
    "lora-scattered": ("7B", 8, (3,), NATIVE | {"TP": "2", "LORA_RANK": "4", "SCATTER_NORMS": "1"}),
    "deepspeed-zero0": ("7B", 8, (4,), DEEPSPEED | {"ZERO_STAGE": "0", "DTYPE": "fp16"}),
    "deepspeed-zero1-tp": ("7B", 8, (4,), DEEPSPEED | {"TP": "2", "SCATTER_NORMS": "1"}),
    "deepspeed-zero2": ("7B", 8, (4,), DEEPSPEED | {"ZERO_STAGE": "2", "SP": "2"}),
    "deepspeed-pipeline": ("7B", 8, (0, 7), DEEPSPEED | {"PP": "2", "TP": "2"}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_message_is_one_of_the_formulas(name, tracer):  # noqa: F811
    preset, world, ranks, env = LAYOUTS[name]
    for rank in ranks:
        trace, found, _, _ = tracer(preset, rank, world, SMALL | env)
        assert found.is_equal, [line for line in found.lines if not line.is_equal]
        assert found.lines
        assert trace.stage == rank * int(env.get("PP", "1")) // world
        for call, _ in found.small:
            assert call.kind in ("all-reduce", "broadcast", "reduce")


def test_a_formula_that_lacks_a_message_or_has_one_too_many_is_not_equal(tracer, monkeypatch):  # noqa: F811
    import dataclasses

    from megads.trace import compare as module
    from tests.trace.dry_runs import run_of

    env = SMALL | NATIVE | {"TP": "2"}
    trace, found, _, _ = tracer("7B", 1, 8, env)
    run, real = run_of("7B", 8, env), module.traffic
    assert module.compare(run, trace) == found
    changes = {
        "too few": lambda messages: messages[1:],
        "too many": lambda messages: [*messages, dataclasses.replace(messages[0], num_bytes=12_345)],
        "twice": lambda messages: [*messages, messages[0]],
        "larger": lambda messages: [dataclasses.replace(each, num_bytes=each.num_bytes + 1) for each in messages],
    }
    for change in changes.values():
        monkeypatch.setattr(module, "traffic", lambda *args, change=change: change(real(*args)))
        assert not module.compare(run, trace).is_equal
