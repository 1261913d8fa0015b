"""What BERT and T5 keep, next to what Megatron-LM's own tests measured on H100 devices."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.config.stages import virtual_stages
from megads.plan.memory import GIB, _of_stage, stages
from megads.plan.parts.activations import Stage
from megads.plan.parts.stacks import head_tokens, recomputing_bytes, saved_bytes

CASED = 28_996  # tokens of BERT's cased vocabulary, which these runs have


def _run(preset: str, ranks: int = 8, **env: str) -> RunConfig:
    sizes = {"model.vocab_size": "0", **({"data.vocab_extra_ids": "100"} if preset == "t5-220M" else {})}
    given = {"DTYPE": "bf16", "ZERO_STAGE": "0", **env}
    resolved = resolve(preset, env=given, overrides=sizes, machine="generic")
    vocab = CASED + 2 + resolved.run.data.vocab_extra_ids
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=vocab).run


def _megatrons_peak(run: RunConfig, ranks: int) -> float:
    """Return the GiB of the last pipeline stage, which Megatron-LM logs, from our estimate of the same run.

    There, every rank has all of the optimizer (18 bytes a parameter), attention is not fused (five bytes of every
    weight: softmax, dropout mask and product), and a layer of T5 keeps the text it works on, not the other one next to
    it.
    """
    stage, model, batch = list(stages(run))[-1], run.model, run.train.micro_batch
    encoder, decoder = _layers(run, stage)
    enc, dec = model.seq_length, model.decoder_seq_length
    weights = encoder * enc * enc + decoder * (dec * dec + dec * enc)
    core = 5 * model.num_heads * batch * weights // run.parallel.tensor
    beside = 2 * model.hidden_size * batch * (encoder * dec + decoder * enc)
    state = _of_stage(run, ranks, stage).weights // 2 * 18
    logits = 12 * head_tokens(run) * -(-model.vocab_size // 128) * 128 // run.parallel.tensor
    # Of the last stage's v chunks (v - 1) PP + 1 are in flight, where it holds one micro-batch without virtual stages.
    held = ((virtual_stages(run) - 1) * run.parallel.pipeline + 1) / virtual_stages(run)
    activations = saved_bytes(run, stage) + held * (core - beside)
    return (state + activations + logits) / GIB


def _layers(run: RunConfig, stage: Stage) -> tuple[int, int]:
    encoder = max(0, min(run.model.num_layers, stage.first + stage.layers) - stage.first)
    return encoder, stage.layers - encoder


# All 65 rows of BERT and T5 of Megatron-LM's functional tests (golden values, peak of steps 5 to 20), by layout:
# preset, ranks, settings, least and most GiB over A100, H100 and GB200, our GiB.
PUBLISHED = {
    "bert_mcore_tp1_pp4_vp2": (
        "bert-345M",
        8,
        {"PP": "4", "GLOBAL_BATCH": "128", "NUM_LAYERS_PER_VIRTUAL_STAGE": "2"},
        4.8444,
        4.9303,
        5.14,
    ),
    "bert_mcore_tp2_pp2": ("bert-345M", 8, {"TP": "2", "PP": "2", "GLOBAL_BATCH": "128"}, 2.8343, 2.9110, 2.92),
    "bert_mcore_tp4_pp1": ("bert-345M", 8, {"TP": "4", "GLOBAL_BATCH": "128"}, 2.9389, 2.9990, 2.92),
    "bert_release": (
        *("bert-345M", 64, {"TP": "8", "PP": "8", "GLOBAL_BATCH": "32", "DTYPE": "fp16"}),
        *(0.4195, 0.4669, 0.38),
    ),
    "t5_mcore_tp1_pp1_vp1": ("t5-220M", 8, {"GLOBAL_BATCH": "32"}, 5.7038, 5.8012, 5.71),
    "t5_mcore_te_tp2_pp1_vp1": ("t5-220M", 8, {"TP": "2", "GLOBAL_BATCH": "32"}, 3.0701, 3.1453, 3.006),
    "t5_mcore_tp4_pp1": ("t5-220M", 8, {"TP": "4", "GLOBAL_BATCH": "32"}, 1.6896, 1.7359, 1.65),
    "t5_release_sm": (
        *("t5-220M", 8, {"TP": "4", "GLOBAL_BATCH": "512", "MICRO_BATCH": "32"}),
        *(6.5155, 6.5278, 6.67),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_peaks(name):
    preset, ranks, settings, least, most, ours = PUBLISHED[name]
    run = _run(preset, ranks, **{"MICRO_BATCH": "4", **settings})
    found = _megatrons_peak(run, ranks)
    assert found == pytest.approx(ours, abs=0.006)
    for peak in (least, most):
        assert abs(found - peak) < max(0.05 * peak, 0.3)


def test_a_decoder_counts_its_own_tokens():
    run = _run("t5-220M", ranks=1, MICRO_BATCH="2", GLOBAL_BATCH="2")
    short = _run("t5-220M", ranks=1, MICRO_BATCH="2", GLOBAL_BATCH="2", DECODER_SEQ="64")
    whole = Stage(0, 24, has_embedding=True, has_head=True)
    assert (head_tokens(run), head_tokens(short)) == (2 * 128, 2 * 64)
    encoder = saved_bytes(run, Stage(0, 12, True, False))
    decoder = saved_bytes(run, Stage(0, 12, False, True, first=12))
    assert encoder + decoder == saved_bytes(run, whole)
    # A layer's input is a part of one tensor with both texts: the encoder's keep the decoder's 64 tokens more.
    assert encoder - saved_bytes(short, Stage(0, 12, True, False)) == 12 * 2 * 64 * 768 * 2
    # Keys, values and the encoder's part of the input stay, for every length of the decoder.
    seen = 12 * 2 * 512 * 3 * 768 * 2
    assert 2 * (saved_bytes(short, Stage(0, 12, False, True, first=12)) - seen) == decoder - seen
    bert = _run("bert-345M", ranks=1, MICRO_BATCH="2", GLOBAL_BATCH="2")
    assert head_tokens(bert) == 2 * 512


def test_recomputation_keeps_inputs_and_holds_the_largest_layer():
    full = _run("t5-220M", ranks=1, MICRO_BATCH="2", GLOBAL_BATCH="2", RECOMPUTE="full")
    whole = Stage(0, 24, has_embedding=True, has_head=True)
    assert saved_bytes(full, whole) == 24 * 2 * (512 + 128) * 768 * 2
    plain = _run("t5-220M", ranks=1, MICRO_BATCH="2", GLOBAL_BATCH="2")
    assert recomputing_bytes(plain, whole) == 0
    assert recomputing_bytes(full, whole) >= saved_bytes(plain, Stage(0, 1, True, False))
