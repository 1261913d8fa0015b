"""Derived values: one definition each, consistent whichever of them is given."""

from __future__ import annotations

import math

import pytest

from megads.config.derive import FILLED, derive, padded_vocab_size
from megads.config.sources.resolve import Resolved, resolve
from megads.config.tree import value_of
from megads.data.datasets import samples_of
from megads.errors import ConfigError


def _derive(env=None, preset=None, *, hosts=1, ranks=8, vocab=32_000, machine="generic", **overrides) -> Resolved:
    names = {name.replace("__", "."): text for name, text in overrides.items()}
    resolved = resolve(preset, env=env or {}, overrides=names, machine=machine)
    return derive(resolved, num_hosts=hosts, ranks_per_host=ranks, vocab_size=vocab)


def test_nothing_is_left_to_derive():
    resolved = _derive(preset="7B")
    for name in FILLED:
        assert value_of(resolved.run, name), name
        assert value_of(resolved.run, name) == 11008 or resolved.origins[name].layer in ("derived", "preset", "default")


def test_deriving_twice_changes_nothing():
    once = _derive(preset="7B", env={"TP": "2"})
    assert derive(once, num_hosts=1, ranks_per_host=8, vocab_size=32_000).run == once.run


@pytest.mark.parametrize(
    ("env", "batch"),
    [
        ({}, (1, 1, 8)),
        ({"MICRO_BATCH": "2"}, (2, 1, 16)),
        ({"GRAD_ACC_STEPS": "4"}, (1, 4, 32)),
        ({"GLOBAL_BATCH": "64"}, (1, 8, 64)),
        ({"GLOBAL_BATCH": "64", "MICRO_BATCH": "4"}, (4, 2, 64)),
        ({"GLOBAL_BATCH": "64", "MICRO_BATCH": "4", "GRAD_ACC_STEPS": "2"}, (4, 2, 64)),
        ({"GLOBAL_BATCH": "64", "TP": "4"}, (1, 32, 64)),
    ],
)
def test_batch_identity(env, batch):
    train = _derive(env).run.train
    assert (train.micro_batch, train.grad_acc_steps, train.global_batch) == batch


def test_a_decoder_is_as_deep_as_the_encoder_and_half_as_long():
    model = _derive({"MODEL_FAMILY": "t5", "NLAYERS": "3", "SEQ": "101"}).run.model
    assert (model.decoder_layers, model.decoder_seq_length) == (3, 51)
    model = _derive({"MODEL_FAMILY": "t5", "DECODER_LAYERS": "2", "DECODER_SEQ": "40"}).run.model
    assert (model.decoder_layers, model.decoder_seq_length) == (2, 40)
    assert _derive({"MODEL_FAMILY": "bert"}).run.model.decoder_seq_length == 0


def test_origins_tell_the_formula():
    origins = _derive({"GRAD_ACC_STEPS": "4", "TRAIN_ITERS": "10"}).origins
    assert str(origins["train.global_batch"]) == "derived MICRO_BATCH x GRAD_ACC_STEPS x DP"
    assert str(origins["train.train_tokens"]) == "derived TRAIN_ITERS x GLOBAL_BATCH x SEQ"
    assert str(origins["parallel.data"]) == "derived 8 ranks / (TP x PP x SP)"


def test_a_preset_keeps_its_global_batch_with_a_smaller_micro_batch():
    resolved = _derive(preset="gpt-345M", vocab=50_257)
    assert (resolved.run.train.micro_batch, resolved.run.train.global_batch) == (1, 8)
    assert any(note.startswith("MICRO_BATCH=4 (preset gpt-345M) becomes 1") for note in resolved.notes)


def test_a_given_micro_batch_moves_a_presets_global_batch():
    resolved = _derive({"MICRO_BATCH": "7"}, "gpt3-175B", ranks=128, vocab=51_200)
    assert (resolved.run.train.grad_acc_steps, resolved.run.train.global_batch) == (219, 1533)
    assert any("GLOBAL_BATCH=1536 (preset gpt3-175B) becomes 1533" in note for note in resolved.notes)


def test_a_given_number_of_ranks_moves_the_machines_batch():
    resolved = _derive({"NGPU_PER_HOST": "3"}, ranks=3, machine="cpu")
    assert resolved.run.train.global_batch == 24


@pytest.mark.parametrize(
    ("env", "iters"),
    [
        ({"TRAIN_ITERS": "10"}, 10),
        ({"TRAIN_SAMPLES": "85"}, 10),
        ({"TRAIN_TOKENS": "1e6", "SEQ": "1000"}, 125),
        ({"TRAIN_TOKENS": "1e6", "SEQ": "1000", "TRAIN_SAMPLES": "1000", "TRAIN_ITERS": "125"}, 125),
        ({}, 4_673_780_159_710 // 4096 // 8),
    ],
)
def test_lengths(env, iters):
    train = _derive(env).run.train
    assert train.train_iters == iters
    assert train.train_samples >= iters * 8


def test_lengths_follow_iterations():
    train = _derive({"TRAIN_ITERS": "10"}).run.train
    assert (train.train_samples, train.train_tokens) == (80, 80 * 4096)


@pytest.mark.parametrize(
    ("env", "iters", "samples"),
    [
        # Each size is for 32 samples: 16 16 32 48, and then 112 samples are used and every batch is whole.
        ({"TRAIN_ITERS": "4"}, 4, 112),
        ({"TRAIN_ITERS": "10"}, 10, 16 + 16 + 32 + 48 + 6 * 64),
        ({"TRAIN_SAMPLES": "95"}, 3, 95),
        ({"TRAIN_SAMPLES": "1000"}, 17, 1000),
        ({"TRAIN_TOKENS": "1e5", "SEQ": "100"}, 17, 16 + 16 + 32 + 48 + 13 * 64),
    ],
)
def test_lengths_with_a_growing_batch(env, iters, samples):
    ramp = {"GLOBAL_BATCH": "64", "RAMPUP_BATCH_SIZE": "16 16 96"}
    resolved = _derive({**ramp, **env})
    assert (resolved.run.train.train_iters, resolved.run.train.train_samples) == (iters, samples)
    assert derive(resolved, num_hosts=1, ranks_per_host=8, vocab_size=32_000).run == resolved.run


def test_model_sizes():
    llama = _derive({"HIDDEN": "128", "HEADS": "4"}).run.model
    assert (llama.num_kv_heads, llama.head_dim, llama.ffn_hidden_size) == (4, 32, 320)
    assert llama.init_std == pytest.approx(math.sqrt(2 / (5 * 128)))
    gpt = _derive({"HIDDEN": "128", "HEADS": "4", "NO_LLAMA": "1", "SEQ": "256"}).run.model
    assert (gpt.ffn_hidden_size, gpt.max_positions, gpt.init_std) == (512, 256, 0.02)
    assert (gpt.vocab_size, padded_vocab_size(gpt)) == (32_000, 32_000)
    odd = _derive({"VOCAB_MULTIPLE": "384"}).run.model
    assert padded_vocab_size(odd) == 32_256


def test_head_dim_frees_the_width():
    assert _derive({"HIDDEN": "100", "HEADS": "3", "HEAD_DIM": "32"}).run.model.head_dim == 32


@pytest.mark.parametrize(
    ("env", "warmup", "decay"),
    [
        ({"TRAIN_ITERS": "150"}, 0, 150),
        ({"TRAIN_ITERS": "30", "LR_WARMUP_FRAC": "0.1"}, 0, 30),
        ({"TRAIN_ITERS": "30", "LR_WARMUP_FRAC": "0.1", "LR_WARMUP_ITERS": "3"}, 3, 30),
        ({"TRAIN_ITERS": "30", "LR_DECAY_ITERS": "20", "LR_WARMUP_ITERS": "7"}, 7, 20),
        ({"TRAIN_ITERS": "30", "LR_WARMUP_FRAC": "0"}, 0, 30),
    ],
)
def test_schedule(env, warmup, decay):
    optim = _derive(env).run.optim
    assert (optim.lr_warmup_iters, optim.lr_decay_iters) == (warmup, decay)


def test_a_warm_up_longer_than_the_run_is_told():
    resolved = _derive({"TRAIN_ITERS": "100"}, "gpt-345M", vocab=50_257)
    assert any("the learning rate still rises when TRAIN_ITERS=100 end" in note for note in resolved.notes)


def test_names():
    assert _derive(preset="7B").run.name == "7B"
    assert _derive({"NO_LLAMA": "1"}).run.name == "gpt"
    assert _derive({"RUN_NAME": "mine"}, "7B").run.name == "mine"


def test_data_degree():
    assert _derive({"TP": "2", "DP": "4"}).run.parallel.data == 4
    with pytest.raises(
        ConfigError, match=r"DP=4, but 8 ranks / \(TP=1 x PP=1 x SP=1\) = 8; use DP=8 or NGPU_PER_HOST=4$"
    ):
        _derive({"DP": "4"})


def test_both_ways_to_split_in_one_layer_are_refused():
    resolved = resolve(env={"SPLIT": "98,2,0", "TRAIN_SPLIT": "5"}, machine="cpu")
    with pytest.raises(
        ConfigError, match=r"TRAIN_SPLIT=5.0 \(env TRAIN_SPLIT\) and SPLIT=98,2,0 .*: set only one of them"
    ):
        derive(resolved, num_hosts=1, ranks_per_host=1, vocab_size=100)


@pytest.mark.parametrize(
    ("env", "evaluates"),
    [
        ({}, False),
        ({"TRAIN_ITERS": "0"}, True),
        ({"TRAIN_ITERS": "0", "TRAIN_TOKENS": "0"}, True),
        ({"TRAIN_ITERS": "0", "TRAIN_TOKENS": "1000000"}, False),
        ({"TRAIN_ITERS": "0", "TRAIN_SAMPLES": "1000"}, False),
        ({"TRAIN_ITERS": "5"}, False),
        ({"EVALUATE_ONLY": "1"}, True),
        ({"SKIP_TRAIN": "1", "TRAIN_ITERS": "5", "EVAL_INTERVAL": "0"}, True),
    ],
)
@pytest.mark.parametrize("preset", ["7B", "tiny", None])
def test_no_steps_is_a_run_that_evaluates_only(env, evaluates, preset):
    run = _derive(env, preset).run
    assert run.train.evaluate_only == evaluates
    wanted = samples_of(run)
    assert wanted["valid"] == run.train.eval_iters * run.train.global_batch
    if evaluates:  # not the samples of the preset's whole budget, an index of 686 GiB
        assert wanted["train"] == run.train.global_batch
    again = derive(Resolved(run, _derive(env, preset).origins), num_hosts=1, ranks_per_host=8, vocab_size=32_000)
    assert again.run == run


def test_a_run_without_any_length_is_refused():
    with pytest.raises(ConfigError, match="TRAIN_TOKENS, TRAIN_SAMPLES and TRAIN_ITERS are all 0; set one of them"):
        _derive({"TRAIN_TOKENS": "0"})
