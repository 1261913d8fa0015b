"""Which lengths of a run and its schedule count."""

import pytest

from megads.config.derive import derive
from megads.config.run_folder import save_config
from megads.config.schedule.rates import Schedule, WeightDecay
from megads.config.sources.flags import split_flags
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from tests.checkpoint.faked import derived

MODEL = (
    *("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32"),
    *("--micro-batch-size", "2", "--lr", "1e-4"),
)


def resolved(*words, preset=None, env=None, machine="generic"):
    pairs, rest = split_flags(words, {})
    assert not rest
    return resolve(preset, env=env or {}, flags=pairs, machine=machine)


BUDGET = ("--num-layers", "2", *MODEL[2:], "--global-batch-size", "8", "--train-samples", "800")


@pytest.mark.parametrize(
    ("words", "steps", "decay", "first"),
    [
        ((*BUDGET, "--train-tokens", str(10 * 8 * 32)), 10, 100, "TRAIN_TOKENS=2560 (cli --train-tokens, 10 steps)"),
        ((*BUDGET, "--train-tokens", "1e9"), 100, 100, "TRAIN_SAMPLES=800 (cli --train-samples, 100 steps)"),
        ((*BUDGET[:-2], "--train-iters", "30", "--train-tokens", "2560"), 10, 30, "TRAIN_TOKENS=2560"),
        ((*BUDGET, "--train-tokens", "2560", "--lr-decay-samples", "160"), 10, 20, "TRAIN_TOKENS=2560"),
    ],
)
def test_tokens_are_a_second_limit(tmp_path, words, steps, decay, first):
    found = derive(resolved(*words), num_hosts=1, ranks_per_host=1, vocab_size=500)
    assert (found.run.train.train_iters, found.run.optim.lr_decay_iters) == (steps, decay)
    assert Schedule.of(found.run).decay_samples == 8 * decay
    notes = [note for note in found.notes if "ends the run before" in note]
    assert len(notes) == 1
    assert notes[0].startswith(first)
    # The run's own file says the same.
    save_config(found.run, found.origins, tmp_path / "config.yaml")
    again = resolve(env={"CONFIG_FILE": str(tmp_path / "config.yaml")}, machine="generic")
    again = derive(again, num_hosts=1, ranks_per_host=1, vocab_size=500)
    assert again.run.train == found.run.train
    assert again.run.optim == found.run.optim


def test_other_lengths_that_differ_are_refused():
    for words in ((*BUDGET, "--train-iters", "30"), (*BUDGET, "--train-iters", "30", "--train-tokens", "2560")):
        with pytest.raises(ConfigError, match="set only one of them"):
            derive(resolved(*words), num_hosts=1, ranks_per_host=1, vocab_size=500)
    both = resolved(*BUDGET[:-2], env={"TRAIN_TOKENS": "2560", "TRAIN_SAMPLES": "800"})
    with pytest.raises(ConfigError, match="set only one of them"):
        derive(both, num_hosts=1, ranks_per_host=1, vocab_size=500)


def test_what_nobody_gives():
    assert Schedule.of(derived()) == Schedule(
        2e-4, 0.0, pytest.approx(4.8), 96, "cosine", weight_decay=WeightDecay(0.1, 0.1)
    )
    assert Schedule.of(derived(LR_DECAY_STYLE="wsd")).cooldown_samples == pytest.approx(4.8)
    made = Schedule.of(derived(LR_DECAY_STYLE="infinite-inv-square-root", MIN_LR="1e-5"))
    assert (made.style, made.timescale) == ("infinite-inverse-square-root", 10.0)
    assert (made.cooldown_samples, made.constant_samples) == (pytest.approx(62.4), pytest.approx(0.096))
    assert made.constant_lr == pytest.approx(1.1e-4)
