import re
import time

import pytest

from megads.config.setting import Origin
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from megads.launch.job import ending_line, environment_names, options_of, refuse_secrets


def test_the_banner_says_when_the_job_ends():
    assert ending_line(0.0) == ""
    assert re.fullmatch(
        r"\nends     at \d\d:\d\d(:\d\d)?( on \S+)?, in 1h00m; the run saves and exits with 75 before",
        ending_line(time.time() + 3600),
    )


def test_a_variable_that_decided_several_settings_is_named_once():
    twice = Origin("env", "DISTRIBUTE_SAVED_ACTIVATIONS")
    adopted = Origin("env", "DS_CONFIG_OVERRIDES steps_per_print")
    origins = {"a": twice, "b": Origin("default"), "c": twice, "d": adopted}
    assert environment_names(origins) == ["DISTRIBUTE_SAVED_ACTIVATIONS", "DS_CONFIG_OVERRIDES"]


def test_the_options_of_a_setting_are_known_with_the_words_behind_them():
    assert options_of("optim.optimizer") == ["--optimizer ", "--set optim.optimizer="]
    assert options_of("train.dtype") == ["--fp16", "--bf16", "--set train.dtype="]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"data.path": "https://me:hunter22@host/x"}, "DATA_PATH=https://***@host/x holds a key or password"),
        ({"track.wandb_project": "0123456789abcdef"}, "WANDB_PROJECT=*** holds a key or password"),
        ({"name": "hf_AbCdEfGhIjKlMnOpQrStUvWx"}, "RUN_NAME=*** holds a key or password"),
    ],
)
def test_a_setting_that_holds_a_secret_is_refused(overrides, told):
    run = resolve("7B", env={}, overrides=overrides, machine="generic").run
    with pytest.raises(ConfigError) as caught:
        refuse_secrets(run, {"WANDB_API_KEY": "0123456789abcdef"})
    assert str(caught.value).startswith(told)
