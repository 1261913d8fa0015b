"""A user's own JSON of DeepSpeed: DS_CONFIG_OVERRIDES."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from megads.config.deepspeed.dictionary import deepspeed_config
from megads.config.deepspeed.keys import FOLLOWS
from megads.config.derive import derive
from megads.config.run_folder import load_config, save_config
from megads.config.schema import RunConfig
from megads.config.sources.resolve import Resolved, resolve
from megads.errors import ConfigError


def _run(env: dict[str, str], ranks: int = 4) -> RunConfig:
    resolved = resolve("tiny", env=env, machine="generic")
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=500).run


def _adopted(content: Any, path: Path, env: dict[str, str] | None = None) -> Resolved:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    given = {"DTYPE": "bf16", **(env or {}), "DS_CONFIG_OVERRIDES": str(path)}
    return derive(resolve("tiny", env=given, machine="generic"), num_hosts=1, ranks_per_host=4, vocab_size=500)


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "mine.json"


def test_keys_without_a_setting_are_merged(file):
    content = {"zero_optimization": {"round_robin_gradients": True}, "tensorboard": {"enabled": False}}
    config = deepspeed_config(_adopted(content, file).run, 4)
    assert config["zero_optimization"]["round_robin_gradients"] is True
    assert config["zero_optimization"]["stage"] == 1
    assert config["tensorboard"] == {"enabled": False}


def test_keys_with_a_setting_become_it(file):
    content = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}, "steps_per_print": None}
    resolved = _adopted(content, file, {"ZERO_STAGE": "2"})
    assert resolved.run.deepspeed.offload_optimizer == "cpu"
    origin = resolved.origins["deepspeed.offload_optimizer"]
    assert (origin.layer, origin.detail.split()[0]) == ("env", "DS_CONFIG_OVERRIDES")
    assert resolved.run.deepspeed.config_overrides == ""
    assert deepspeed_config(resolved.run, 4)["zero_optimization"]["offload_optimizer"]["device"] == "cpu"


def test_ranks_see_what_the_launcher_saw(file, tmp_path):
    resolved = _adopted({"zero_optimization": {"round_robin_gradients": True}}, file)
    save_config(resolved.run, resolved.origins, tmp_path / "config.yaml")
    file.write_text('{"zero_optimization": {"round_robin_gradients": false}}')
    assert deepspeed_config(load_config(tmp_path / "config.yaml"), 4) == deepspeed_config(resolved.run, 4)
    assert "mine.json" not in (tmp_path / "config.yaml").read_text().split("config_overrides:")[1].split("#")[0]


def test_what_agrees_with_the_settings_is_accepted(file):
    content = {"train_batch_size": 8, "bfloat16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    resolved = _adopted(content, file, {"GLOBAL_BATCH": "8"})
    assert "bfloat16" not in deepspeed_config(resolved.run, 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["not JSON"]),
        ("{'a': 1}", ["not JSON"]),
        ('{"a": NaN}', ["not JSON", "NaN"]),
        ("[1]", ["not an object"]),
        ({"zero_optimisation": {}}, ["zero_optimisation", "did you mean zero_optimization?"]),
        ({"zero_optimization": {"reduce_bucketsize": 1}}, ["did you mean reduce_bucket_size?"]),
        ({"zero_optimization": {"offload_param": {"devise": "cpu"}}}, ["devise", "did you mean device?"]),
        ({"zero_optimization": 1}, ["not an object"]),
        ({"fp16": {"lossscale": 1}}, ["did you mean loss_scale?"]),
        ({"optimizer": {"type": "Adam"}}, ["OPT, LR"]),
        ({"scheduler": {}}, ["LR_DECAY_STYLE"]),
        ({"zero_optimization": {"reduce_bucket_size": -1}}, ["reduce_bucket_size", "greater than 0"]),
        ({"zero_optimization": {"offload_optimizer": {"device": "disk"}}}, ["device", "none, cpu, nvme"]),
    ],
)
def test_files_that_are_refused(content, words, file):
    with pytest.raises(ConfigError) as problem:
        _adopted(content, file)
    assert all(word in str(problem.value) for word in (*words, "DS_CONFIG_OVERRIDES"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"zero_optimization": {"reduce_bucket_size": {"a": 1}}}, ["reduce_bucket_size is an object, not one value"]),
        ({"steps_per_print": {"a": 1}}, ["steps_per_print is an object"]),
        ({"train_batch_size": {"a": 1}}, ["train_batch_size is an object"]),
        ({"prescale_gradients": {"a": 1}}, ["prescale_gradients is an object"]),
        ({"comms_logger": True}, ["comms_logger is true, not an object"]),
        ({"zero_optimization": {"reduce_bucket_size": None}}, ["reduce_bucket_size: null is not a value"]),
        ('{"zero_optimization": {"stage": 2, "stage": 1}}', ["stage is given twice"]),
    ],
)
def test_values_of_the_wrong_shape_are_refused(content, words, file):
    with pytest.raises(ConfigError) as problem:
        deepspeed_config(_adopted(content, file).run, 4)
    assert all(word in str(problem.value) for word in (*words, "DS_CONFIG_OVERRIDES"))


def test_the_old_name_of_bf16_is_the_new_one(file):
    config = deepspeed_config(_adopted({"bfloat16": {"check_grad_overflow": False}}, file).run, 4)
    assert "bfloat16" not in config
    assert config["bf16"]["check_grad_overflow"] is False


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    env = {"DS_CONFIG_OVERRIDES": str(tmp_path / "pipe")}
    with pytest.raises(ConfigError, match="not a regular file"):
        derive(resolve("tiny", env=env, machine="generic"), num_hosts=1, ranks_per_host=4, vocab_size=500)


def test_a_file_that_is_not_there():
    env = {"DS_CONFIG_OVERRIDES": "no/such.json"}
    with pytest.raises(ConfigError, match=r"DS_CONFIG_OVERRIDES=no/such.json: No such file"):
        derive(resolve("tiny", env=env, machine="generic"), num_hosts=1, ranks_per_host=4, vocab_size=500)


@pytest.mark.parametrize("key", FOLLOWS)
def test_what_follows_from_settings_can_not_be_changed(key, file):
    content: dict[str, Any] = {}
    section = content
    for part in key.split(".")[:-1]:
        section = section.setdefault(part, {})
    section[key.split(".")[-1]] = 31
    with pytest.raises(ConfigError) as problem:
        deepspeed_config(_adopted(content, file).run, 4)
    assert FOLLOWS[key] in str(problem.value)


@pytest.mark.parametrize("section", ["zero_optimization", "bf16", "comms_logger"])
def test_an_empty_section_changes_nothing(section, file):
    env = {"ZERO_STAGE": "2", "COMMS_LOGGER": "1"}
    ours = deepspeed_config(_adopted({}, file, env).run, 4)
    assert deepspeed_config(_adopted({section: {}}, file, env).run, 4) == ours


def test_a_setting_and_the_file_that_differ_are_refused(file):
    content = {"zero_optimization": {"reduce_bucket_size": 1000}}
    with pytest.raises(ConfigError, match=r"REDUCE_BUCKET_SIZE=2000 \(env REDUCE_BUCKET_SIZE\); drop one of them"):
        _adopted(content, file, {"REDUCE_BUCKET_SIZE": "2000"})
    assert _adopted(content, file, {"REDUCE_BUCKET_SIZE": "1000"}).run.deepspeed.reduce_bucket_size == 1000


def test_two_keys_of_one_setting_that_differ_are_refused(file):
    places = {"offload_param": {"nvme_path": "/a"}, "offload_optimizer": {"nvme_path": "/b"}}
    with pytest.raises(ConfigError, match="nvme_path"):
        _adopted({"zero_optimization": places}, file)
