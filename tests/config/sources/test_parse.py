"""Text and values of YAML, in the type of a setting."""

from __future__ import annotations

import pytest

from megads.config.sources.resolve import resolve


@pytest.mark.parametrize("word", ["1", "true", "YES", "On"])
def test_switch_on(word):
    assert resolve(env={"ADD_BIAS": word}, machine="generic").run.model.bias is True


@pytest.mark.parametrize("word", ["0", "False", "no", "OFF"])
def test_switch_off(word):
    assert resolve(env={"EVAL_AT_START": word}, machine="generic").run.train.eval_at_start is False


@pytest.mark.parametrize(
    ("text", "value"),
    [("2_000", 2000), ("1e9", 10**9), ("1.5E3", 1500), (" 7 ", 7), ("4.67378015971e12", 4673780159710)],
)
def test_integers(text, value):
    assert resolve(env={"TRAIN_TOKENS": text}, machine="generic").run.train.train_tokens == value


def test_choices_ignore_case():
    run = resolve(env={"DTYPE": "BF16", "LAUNCH_WITH": "MPICH"}, machine="generic").run
    assert (run.train.dtype, run.launch.launch_with) == ("bf16", "mpich")


@pytest.mark.parametrize(("word", "value"), [("1", "on"), ("Yes", "on"), ("on", "on"), ("0", "off"), ("auto", "auto")])
def test_a_choice_between_on_and_off_is_a_switch_too(word, value):
    assert resolve(env={"TENSORBOARD": word}, machine="generic").run.track.tensorboard == value
