"""Options of other toolkits: each one is a setting, harmless or rejected, and means what it means there."""

import pytest

from megads.config.rules.advice import shown
from megads.config.setting import Origin
from megads.config.sources.flags import BACKEND, flags, read_flags, split_flags, takes_of
from megads.config.sources.other_options import HARMLESS, NEEDS, OPTIONS, REJECTED
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from tests.config.option_names import NAMES

MODEL = (
    *("--num-layers", "2", "--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32"),
    *("--micro-batch-size", "2", "--lr", "1e-4"),
)
SWITCH_AND_VALUE = {"--profile": "", "--num-experts": "values", "--profile_steps": "values"}
"""What follows an option that toolkits disagree on, or that takes more words here."""


def resolved(*words, preset=None, env=None, machine="generic"):
    pairs, rest = split_flags(words, {})
    assert not rest
    return resolve(preset, env=env or {}, flags=pairs, machine=machine)


@pytest.mark.parametrize("toolkits", NAMES)
def test_every_option_of_the_toolkits_is_a_setting_harmless_or_rejected(toolkits):
    for word in NAMES[toolkits].split():
        name = word.rstrip(":")
        assert (name in flags()) + (name in HARMLESS) + (name in REJECTED) + (name == "--no-position-embedding") == 1, (
            name
        )
        takes = {0: "", 1: "value", 2: "values"}[len(word) - len(name)]
        assert takes_of(name) == SWITCH_AND_VALUE.get(name, takes), name


def test_all_three_lists_are_there():
    counts = {letter: sum(len(text.split()) for key, text in NAMES.items() if letter in key) for letter in "MDB"}
    assert counts == {"M": 302, "D": 316, "B": 184}


@pytest.mark.parametrize("name", REJECTED)
def test_a_rejected_option_says_what_would_work(name):
    with pytest.raises(ConfigError) as caught:
        read_flags([(name, "7")])
    message = str(caught.value)
    assert message.startswith(f"{name} 7 is not supported: ")
    assert "\n" not in message
    for value in REJECTED[name].so_here:
        assert read_flags([(name, value)]).notes == ()


def test_harmless_options_are_reported_in_one_line_each_reason():
    read = read_flags([("--no-masked-softmax-fusion", ""), ("--deepspeed", ""), ("--no-rope-fusion", "")])
    assert read.given == {}
    assert read.notes == (
        "--no-masked-softmax-fusion and --no-rope-fusion have no effect: kernels are torch's and are chosen by torch",
        "--deepspeed has no effect: ENGINE says which engine runs",
    )
    silent = [name for name in HARMLESS if not read_flags([(name, "1")]).notes]
    assert silent == [BACKEND]


@pytest.mark.parametrize("name", NEEDS)
def test_an_option_that_is_nothing_alone_names_the_other(name):
    with pytest.raises(ConfigError) as caught:
        read_flags([(name, "7")])
    assert any(other in str(caught.value) for other in NEEDS[name].options)


@pytest.mark.parametrize(
    ("option", "change", "advice"),
    [
        ("--optimizer", {"optim.optimizer": "sgd"}, "OPT=sgd and drop --optimizer"),
        (
            "--initial-loss-scale",
            {"optim.initial_loss_scale_power": 8},
            "INITIAL_LOSS_SCALE_POWER=8 and drop --init",
        ),
        ("--no-bias-gelu-fusion", {"model.activation": "gelu_tanh"}, "ACTIVATION=gelu_tanh and drop --no-bias-gelu-fu"),
        ("--seq-length", {"model.seq_length": 64}, "--seq-length=64"),
    ],
)
def test_advice_is_in_the_units_of_what_it_names(option, change, advice):
    origins = dict.fromkeys(change, Origin("cli", option))
    assert shown(change, origins).startswith(advice)


def test_no_option_is_two_things():
    assert not set(HARMLESS) & set(REJECTED)
    assert not set(OPTIONS) & set(flags())


def test_alcfs_own_options_are_known():
    words = ["--adjust-word-embedding-init", "--word-embedding-init-std", "0.63", "--multiprocessing-context", "fork"]
    pairs, rest = split_flags(words, {})
    assert rest == []
    notes = read_flags(pairs).notes
    assert len(notes) == 2
    assert "--word-embedding-init-std have no effect: the model that Megatron-DeepSpeed trains" in notes[0]
