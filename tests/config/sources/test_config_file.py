"""``--config FILE.yaml``: settings of a file, and of a run that is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.derive import derive
from megads.config.run_folder import save_config
from megads.config.schedule.rates import Schedule
from megads.config.sources.resolve import Resolved, resolve
from megads.config.tree import fields, value_of
from megads.errors import ConfigError


def _with(path: Path, machine: str = "generic", preset: str | None = None, **env: str) -> Resolved:
    return resolve(preset, env=env, flags=(("--config", str(path)),), machine=machine)


def _derived(resolved: Resolved, ranks: int) -> Resolved:
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=1000)


def test_a_file_is_above_preset_and_machine_and_below_the_environment(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("optim:\n  lr: 1e-3\nmodel.num_layers: 3\ntrain.train_tokens: 1B\n")
    resolved = _with(mine, "cpu", "7B", LR="2e-3")
    assert (resolved.run.optim.lr, str(resolved.origins["optim.lr"])) == (2e-3, "env LR")
    assert (resolved.run.model.num_layers, str(resolved.origins["model.num_layers"])) == (3, f"config {mine}")
    assert (resolved.run.train.train_tokens, resolved.run.train.train_iters) == (10**9, 0)
    assert resolve("7B", env={"CONFIG_FILE": str(mine)}, machine="cpu").run.model.num_layers == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("optim.lrr: 1\n", "no setting named 'optim.lrr'; did you mean optim.lr?"),
        ("optim:\n  lr: fast\n", "optim.lr: 'fast' is not a number"),
        ("machine: cpu\n", "machine cannot be set in a file"),
        ("preset: 7B\n", "preset cannot be set in a file; pass --preset"),
        ("- 1\n", "must hold 'key: value' lines"),
        ("settings:\n  model.num_layers: 2\n", "'settings:' is the form of a preset; pass --preset"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, words):
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    with pytest.raises(ConfigError) as caught:
        _with(mine)
    assert words in str(caught.value)
    assert str(mine) in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        _with(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("preset", "machine", "env"),
    [
        ("7B", "cpu", {"TP": "2", "NLAYERS": "10", "LR": "1e-4", "OPT": "muon"}),
        ("tiny", "cpu", {"TRAIN_ITERS": "30", "LR_WARMUP_ITERS": "3"}),
        ("gpt-345M", "generic", {"GLOBAL_BATCH": "32", "LR_DECAY_STYLE": "wsd", "COOLDOWN": "0.2"}),
        ("gpt3-175B", "generic", {"PP": "1", "TP": "2", "SPLIT": "9,1,0"}),
    ],
)
def test_a_runs_own_file_gives_its_settings_back(tmp_path, preset, machine, env):
    first = _derived(resolve(preset, env=env, machine=machine), 2)
    save_config(first.run, first.origins, tmp_path / "config.yaml")
    again = _derived(_with(tmp_path / "config.yaml", machine), 2)
    differ = [name for name in fields() if value_of(again.run, name) != value_of(first.run, name)]
    assert differ == ["config_file"]
    # Origins are not frozen: defaults and derived values are what they were.
    for name, origin in first.origins.items():
        if origin.layer in ("default", "family", "derived") and name not in ("config_file", "machine", "name"):
            assert again.origins[name].layer == origin.layer, name


def test_what_follows_from_the_ranks_is_derived_again(tmp_path):
    first = _derived(resolve("7B", env={"TP": "2", "MICRO_BATCH": "4"}, machine="generic"), 4)
    save_config(first.run, first.origins, tmp_path / "config.yaml")
    more = _derived(_with(tmp_path / "config.yaml"), 8)
    assert (first.run.parallel.data, more.run.parallel.data) == (2, 4)
    assert (first.run.train.global_batch, more.run.train.global_batch) == (8, 16)
    assert more.origins["train.global_batch"].layer == "derived"
    other = _derived(_with(tmp_path / "config.yaml", LR="1e-5"), 8)
    assert (other.run.optim.lr, str(other.origins["optim.lr"])) == (1e-5, "env LR")


def test_a_runs_own_file_that_was_edited_is_refused_since_derived_values_would_be_lost(tmp_path):
    first = _derived(resolve("7B", env={"GLOBAL_BATCH": "8"}, machine="generic"), 4)
    path = tmp_path / "config.yaml"
    save_config(first.run, first.origins, path)
    text = path.read_text()
    assert f"train_iters: {first.run.train.train_iters} " in text
    path.write_text(text.replace(f"train_iters: {first.run.train.train_iters} ", "train_iters: 7 "))
    with pytest.raises(ConfigError, match=r"--config .*config.yaml: a run wrote it and it changed since.*--set"):
        _with(path)


def test_a_run_that_only_evaluated_only_evaluates_again(tmp_path):
    first = _derived(resolve("tiny", env={"TRAIN_ITERS": "0"}, machine="generic"), 1)
    save_config(first.run, first.origins, tmp_path / "config.yaml")
    assert first.run.train.evaluate_only
    assert _derived(_with(tmp_path / "config.yaml"), 1).run.train.evaluate_only


SHAPE = "model:\n  hidden_size: 64\n  num_heads: 4\n  num_layers: 2\n"


@pytest.mark.parametrize(
    ("text", "defaults"),
    [("log.log_interval: 5\n", "megatron"), (SHAPE, "megads"), (SHAPE + "defaults: megatron\n", "megatron")],
)
def test_a_file_with_a_shape_is_a_preset_where_defaults_are_megatrons(tmp_path, text, defaults):
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    shape = {"--num-layers": "3", "--hidden-size": "64", "--num-attention-heads": "4"}
    flags = {**shape, "--seq-length": "32", "--micro-batch-size": "1", "--lr": "1e-4", "--train-iters": "2"}
    resolved = resolve(env={"CONFIG_FILE": str(mine)}, flags=flags.items(), machine="generic")
    assert (resolved.run.defaults, resolved.run.model.num_layers) == (defaults, 3)


def test_a_file_may_give_what_megatron_demands(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(SHAPE + "defaults: megatron\nmodel.seq_length: 32\ntrain.micro_batch: 1\ntrain.train_iters: 2\n")
    with pytest.raises(ConfigError, match="--lr is missing"):
        _with(mine)
    assert _with(mine, LR="1e-4").run.defaults == "megatron"


def test_a_fraction_that_steps_had_won_over_stays_below_them(tmp_path):
    before = _derived(resolve("7B", env={"LR_WARMUP_ITERS": "3", "TRAIN_ITERS": "40"}, machine="cpu"), 1)
    assert before.run.optim.lr_warmup_frac > 0
    path = tmp_path / "config.yaml"
    save_config(before.run, before.origins, path)
    again = _derived(_with(path, "cpu", TRAIN_ITERS="80"), 1)
    assert Schedule.of(again.run).warmup_samples == 3 * again.run.train.global_batch
