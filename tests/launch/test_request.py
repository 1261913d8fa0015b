from pathlib import Path

import pytest

from megads.errors import ConfigError
from megads.launch.request import TrainRequest


def ask(*pairs, env=None, words=()):
    return TrainRequest("7B", pairs, env or {}, "host", Path("."), "python3", words)


def test_pairs_become_overrides():
    assert ask("parallel.tensor=2", "data.file_list=a=b").overrides() == {
        "parallel.tensor": "2",
        "data.file_list": "a=b",
    }


@pytest.mark.parametrize("pair", ["parallel.tensor", "=2", ""])
def test_a_pair_needs_a_key_and_a_value(pair):
    with pytest.raises(ConfigError, match=r"expected SECTION.KEY=VALUE"):
        ask(pair).overrides()


def test_the_same_key_twice_must_agree():
    assert ask("parallel.tensor=2", "parallel.tensor=2").overrides() == {"parallel.tensor": "2"}
    with pytest.raises(ConfigError, match=r"parallel\.tensor: given twice, as '2' and '4'"):
        ask("parallel.tensor=2", "parallel.tensor=4").overrides()


def test_the_command_can_be_pasted():
    env = {"TP": "2", "RUN_DIR": "my runs/x", "HOME": "/root", "MEGADS_COMMAND": "bash train_7B.sh --dry-run"}
    assert ask(env=env).command(["TP", "RUN_DIR"]) == "TP=2 RUN_DIR='my runs/x' bash train_7B.sh --dry-run"


def test_options_of_the_beginning_are_not_in_the_line_that_goes_on():
    words = ("train", "--ckpt-step", "5", "--no-load-rng", "--set", "checkpoint.step=5", "--set", "parallel.tensor=2")
    left_out = ["--ckpt-step ", "--set checkpoint.step=", "--no-load-rng"]
    assert ask(words=words).command([], without=left_out) == "megads train --set parallel.tensor=2"
    joined = ("train", "--ckpt-step=5", "--set=checkpoint.step=5", "--no-load-optim", "--set")
    assert ask(words=joined).command([], without=left_out) == "megads train --no-load-optim --set"


def test_an_unnamed_run_is_named_so_that_the_line_means_it():
    assert ask(env={"TP": "2"}, words=("train",)).command(["TP"], Path("runs/x-2")) == (
        "RUN_DIR=runs/x-2 TP=2 megads train"
    )


def test_without_a_script_the_command_is_megads():
    line = ask(env={"TP": "2"}, words=("train", "--set", "a.b=c d")).command(["TP"])
    assert line == "TP=2 megads train --set 'a.b=c d'"
