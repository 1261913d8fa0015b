"""A value of a default, a preset or a machine is overridden by the user's, and the run reports it."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.sources.resolve import Resolved, resolve
from megads.config.tree import value_of
from megads.errors import ConfigError
from tests.config.advice import check


def _derived(preset: str, machine: str, env: dict[str, str], ranks: int = 1, vocab: int = 1000) -> Resolved:
    resolved = resolve(preset, env=env, machine=machine)
    derived = derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=vocab)
    check(derived.run, ranks)
    return derived


# (preset, machine, ranks, what the user gives, what gives way and its value, how the note begins)
YIELDS = [
    ("7B", "cpu", 1, {"LR": "1e-4"}, ("optim.min_lr", 1e-5), "MIN_LR=0.0002 (machine cpu) becomes 1e-05: "),
    (
        "gpt-345M",
        "generic",
        1,
        {"LR": "3e-6"},
        ("optim.min_lr", 3e-7),
        "MIN_LR=1e-05 (preset gpt-345M) becomes 3e-07: ",
    ),
    (
        *("codeparrot-110M", "generic", 1, {"TRAIN_ITERS": "100"}),
        *(("optim.lr_warmup_iters", 10), "LR_WARMUP_ITERS=2000 (preset codeparrot-110M) becomes 10: "),
    ),
    (
        *("7B", "generic", 1, {"LR_DECAY_STYLE": "infinite-cosine"}),
        *(("optim.min_lr", 1.1e-5), "MIN_LR=0.0 (default) becomes 1.1e-05: "),
    ),
    (
        *("7B", "cpu", 1, {"LR_DECAY_STYLE": "infinite-cosine", "LR_CONSTANT": "1e-4"}),
        *(("optim.min_lr", 1e-5), "MIN_LR=0.0002 (machine cpu) becomes 1e-05: "),
    ),
    (
        *("7B", "generic", 1, {"LR_DECAY_STYLE": "wsd", "COOLDOWN": "0.97"}),
        *(("optim.lr_warmup_frac", 0.03), "LR_WARMUP_FRAC=0.05 (default) becomes 0.03: "),
    ),
    (
        "7B",
        "generic",
        1,
        {"HEADS": "12", "HIDDEN": "768"},
        ("model.num_kv_heads", 6),
        "NUM_KV_HEAD=8 (preset 7B) becomes 6: ",
    ),
    ("tiny", "cpu", 1, {"OPT": "galoreadamw"}, ("optim.galore_rank", 16), "GALORE_RANK=128 (default) becomes 16: "),
    (
        "tiny",
        "cpu",
        1,
        {"VAL_SPLIT": "0"},
        ("train.eval_iters", 0),
        "EVAL_ITERS=2 (preset tiny) becomes 0: VAL_SPLIT=0 ",
    ),
    (
        "tiny",
        "cpu",
        1,
        {"SPLIT": "9,0,1"},
        ("train.eval_iters", 0),
        "EVAL_ITERS=2 (preset tiny) becomes 0: SPLIT=9,0,1 ",
    ),
    (
        *("tiny", "generic", 1, {"DTYPE": "fp16", "MIN_LOSS_SCALE": "1e6"}),
        *(("optim.initial_loss_scale_power", 20), "INITIAL_LOSS_SCALE_POWER=16 (default) becomes 20: "),
    ),
    (
        "33B",
        "generic",
        12,
        {"PP": "2", "ENGINE": "deepspeed"},
        ("parallel.zero_stage", 1),
        "ZERO_STAGE=2 (preset 33B) becomes 1: ",
    ),
    (
        *("tiny", "cpu", 1, {"LR_FINDER": "1", "LR_FINDER_MAX": "1e-7"}),
        *(("lr_finder.lowest", 1e-13), "LR_FINDER_MIN=1e-06 (default) becomes 1e-13: "),
    ),
]


@pytest.mark.parametrize(
    ("preset", "machine", "ranks", "env", "yielded", "note"), YIELDS, ids=lambda each: str(each)[:50]
)
def test_a_lower_layer_gives_way_and_a_note_says_so(preset, machine, ranks, env, yielded, note):
    derived = _derived(preset, machine, env, ranks)
    name, value = yielded
    assert value_of(derived.run, name) == pytest.approx(value, rel=1e-6)
    assert any(each.startswith(note) for each in derived.notes), derived.notes
    assert derived.origins[name].layer == "derived"
    # What the user gave stays.
    asked = resolve(preset, env=env, machine=machine)
    for given in (each for each, origin in asked.origins.items() if origin.layer == "env"):
        assert value_of(derived.run, given) == value_of(asked.run, given), given


@pytest.mark.parametrize(
    ("preset", "machine", "env", "words"),
    [
        ("7B", "cpu", {"LR": "1e-4", "MIN_LR": "1e-3"}, "MIN_LR=0.001 is larger than LR=0.0001"),
        ("tiny", "cpu", {"VAL_SPLIT": "0", "EVAL_ITERS": "2"}, "VAL_SPLIT=0 leaves nothing to validate on"),
        # What changes which ranks there are or what shape the model has is the user's to decide.
        ("tiny", "cpu", {"HEADS": "3"}, "HIDDEN=64 is not a multiple of HEADS=3"),
    ],
)
def test_values_of_the_user_do_not_give_way(preset, machine, env, words):
    with pytest.raises(ConfigError) as caught:
        _derived(preset, machine, env)
    assert words in str(caught.value)


@pytest.mark.parametrize(("env", "steps"), [({"LR_DECAY_SAMPLES": "1000"}, 62), ({"LR_DECAY_TOKENS": "100000"}, 48)])
def test_a_machines_zero_is_not_a_second_length(env, steps):
    assert _derived("7B", "cpu", env).run.optim.lr_decay_iters == steps


def test_a_presets_vocabulary_gives_way_to_the_tokenizers():
    derived = _derived("codeparrot-110M", "generic", {}, vocab=50_257)
    assert derived.run.model.vocab_size == 50_257
    assert any(note.startswith("VOCAB_SIZE=32768 (preset codeparrot-110M) becomes 50257") for note in derived.notes)
    with pytest.raises(ConfigError, match="VOCAB_SIZE=32768 is smaller than the tokenizer's 50257"):
        _derived("codeparrot-110M", "generic", {"VOCAB_SIZE": "32768"}, vocab=50_257)
