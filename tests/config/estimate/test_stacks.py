"""What BERT and T5 keep, next to what Megatron-LM's own tests measured on H100 devices."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.estimate.activations import Stage
from megads.config.estimate.memory import GIB, estimate, stages
from megads.config.estimate.stacks import head_tokens, recomputing_bytes, saved_bytes
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve

CASED = 28_996  # tokens of BERT's cased vocabulary, which these runs have


def _run(preset: str, ranks: int = 8, **env: str) -> RunConfig:
    sizes = {"model.vocab_size": "0", **({"data.vocab_extra_ids": "100"} if preset == "t5-220M" else {})}
    resolved = resolve(preset, env={"DTYPE": "bf16", "ZERO_STAGE": "0", **env}, overrides=sizes, machine="generic")
    vocab = CASED + 2 + resolved.run.data.vocab_extra_ids
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=vocab).run


def _megatrons_peak(run: RunConfig) -> float:
    """Return the GiB of the last pipeline stage, which Megatron-LM logs, from our estimate of the same run.

    There, every rank has all of the optimizer (18 bytes a parameter), attention is not fused (five bytes of every
    weight: softmax, dropout mask and product), and norms keep no float32 form of their input and output.
    """
    stage, model, batch = list(stages(run))[-1], run.model, run.train.micro_batch
    memory = estimate(run, 8)
    encoder, decoder = _layers(run, stage)
    enc, dec = model.seq_length, model.decoder_seq_length
    weights = encoder * enc * enc + decoder * (dec * dec + dec * enc)
    core = 5 * model.num_heads * batch * weights // run.parallel.tensor
    widened = 4 * model.hidden_size * batch * (2 * encoder * enc + 3 * decoder * dec)
    state = memory.weights // 2 * 18
    logits = 12 * head_tokens(run) * -(-model.vocab_size // 128) * 128 // run.parallel.tensor
    return (state + saved_bytes(run, stage) + logits + core - widened) / GIB


def _layers(run: RunConfig, stage: Stage) -> tuple[int, int]:
    encoder = max(0, min(run.model.num_layers, stage.first + stage.layers) - stage.first)
    return encoder, stage.layers - encoder


# Preset, layout, GiB at the highest point: bert_mcore_tp4_pp1, bert_mcore_tp2_pp2, t5_mcore_tp1_pp1_vp1 and
# t5_mcore_tp4_pp1 of Megatron-LM's functional tests, on dev_dgx_h100.
PUBLISHED = [
    ("bert-345M", {"TP": "4", "GLOBAL_BATCH": "128"}, 2.999),
    ("bert-345M", {"TP": "2", "PP": "2", "GLOBAL_BATCH": "128"}, 2.911),
    ("t5-220M", {"TP": "1", "GLOBAL_BATCH": "32"}, 5.7618),
    ("t5-220M", {"TP": "4", "GLOBAL_BATCH": "32"}, 1.7056),
]


@pytest.mark.parametrize(("preset", "layout", "peak"), PUBLISHED)
def test_published_peaks(preset, layout, peak):
    found = _megatrons_peak(_run(preset, MICRO_BATCH="4", **layout))
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
