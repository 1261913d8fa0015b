"""Layers, origins, aliases and linked values."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from megads.config.setting import Origin
from megads.config.sources.parse import parse
from megads.config.sources.presets import presets
from megads.config.sources.resolve import resolve, settings
from megads.config.tree import fields, names_of, value_of
from megads.errors import ConfigError


def test_each_layer_wins_over_the_one_below():
    bare = resolve(env={}, machine="generic")
    assert (bare.run.model.num_layers, str(bare.origins["model.num_layers"])) == (32, "default")
    preset = resolve("2B", env={}, machine="generic")
    assert (preset.run.model.hidden_size, str(preset.origins["model.hidden_size"])) == (2048, "preset 2B")
    machine = resolve("2B", env={}, machine="cpu")
    assert (machine.run.model.hidden_size, str(machine.origins["model.hidden_size"])) == (128, "machine cpu")
    env = resolve("2B", env={"HIDDEN": "256"}, machine="cpu")
    assert (env.run.model.hidden_size, str(env.origins["model.hidden_size"])) == (256, "env HIDDEN")
    cli = resolve("2B", env={"HIDDEN": "256"}, overrides={"model.hidden_size": "512"}, machine="cpu")
    assert cli.run.model.hidden_size == 512
    assert cli.origins["model.hidden_size"] == Origin("cli", "--set model.hidden_size")


def test_family_is_a_layer_between_default_and_preset():
    gpt = resolve(env={"MODEL_FAMILY": "gpt"}, machine="generic")
    assert gpt.run.model.activation == "gelu_tanh"
    assert str(gpt.origins["model.activation"]) == "family gpt"
    assert resolve("gpt-345M", env={}, machine="generic").run.model.tied_embeddings is True
    llama = resolve("gpt-345M", env={"MODEL_FAMILY": "llama"}, machine="generic")
    assert llama.run.model.normalization == "rmsnorm"


def test_every_origin_is_recorded():
    resolved = resolve("7B", env={}, machine="cpu")
    assert list(resolved.origins) == [name for name, _ in settings()]


def test_empty_variable_is_unset():
    assert resolve(env={"TP": "", "NO_LLAMA": "", "NHEADS": ""}, machine="generic").run.parallel.tensor == 1


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [
        ("NHEADS", "model.num_heads", "8"),
        ("NUM_LAYERS", "model.num_layers", "8"),
        ("SEQ_LEN", "model.seq_length", "8"),
        ("OPTIM", "optim.optimizer", "adamw"),
        ("TRAIN_ITER", "train.train_iters", "8"),
        ("LR_WARMUP_FRACTION", "optim.lr_warmup_frac", "0.2"),
        ("SAVE", "checkpoint.dir", "there"),
    ],
)
def test_aliases(alias, name, value):
    resolved = resolve(env={alias: value}, machine="generic")
    assert str(value_of(resolved.run, name)) == value
    assert str(resolved.origins[name]) == f"env {alias}"


def test_two_names_with_one_value_agree():
    assert resolve(env={"HEADS": "16", "NHEADS": "1_6"}, machine="generic").run.model.num_heads == 16


def test_negative_switches():
    on = resolve(env={"NO_LLAMA": "1", "NO_FLASH_ATTN": "yes"}, machine="generic")
    assert (on.run.model.family, on.run.model.attention) == ("gpt", "sdpa")
    assert str(on.origins["model.family"]) == "env NO_LLAMA"
    off = resolve(env={"NO_LLAMA": "0", "NO_FLASH_ATTN": "off", "ATTENTION": "flash"}, machine="generic")
    assert (off.run.model.family, off.run.model.attention) == ("llama", "flash")
    same = resolve(env={"NO_FLASH_ATTN": "1", "ATTENTION": "sdpa"}, machine="generic")
    assert same.run.model.attention == "sdpa"


def test_model_arch_and_preset_may_agree_by_alias():
    resolved = resolve("AuroraGPT-7B", env={"MODEL_ARCH": "7B"}, machine="generic")
    assert resolved.run.preset == "7B"
    assert resolve(env={"MODEL_ARCH": "llama-3.2-7b"}, machine="generic").run.preset == "7B"


def test_higher_layer_wins_between_linked_values():
    resolved = resolve("gpt3-175B", env={"GRAD_ACC_STEPS": "2", "TRAIN_ITERS": "10"}, machine="generic")
    train = resolved.run.train
    assert (train.global_batch, train.grad_acc_steps) == (0, 2)
    assert (train.train_samples, train.train_iters, train.train_tokens) == (0, 10, 0)
    assert (
        "GLOBAL_BATCH=1536 (preset gpt3-175B) is overridden by GRAD_ACC_STEPS=2 (env GRAD_ACC_STEPS)" in resolved.notes
    )


def test_warmup_fraction_replaces_a_lower_number_of_steps():
    resolved = resolve("codeparrot-110M", env={"LR_WARMUP_FRAC": "0.1"}, machine="generic")
    assert resolved.run.optim.lr_warmup_iters == 0
    assert any(note.startswith("LR_WARMUP_ITERS=2000 (preset codeparrot-110M)") for note in resolved.notes)


def test_nothing_given_is_the_default_token_budget():
    assert resolve("7B", env={}, machine="generic").run.train.train_tokens == 4_673_780_159_710


def test_machine_says_how_to_get_the_full_width():
    (note,) = resolve("7B", env={}, machine="cpu").notes
    assert "HIDDEN=128 (not 4096)" in note
    assert "MACHINE=generic" in note
    assert resolve("7B", env={}, machine="generic").notes == ()


def test_tiny_keeps_its_width_on_a_cpu():
    resolved = resolve("tiny", env={}, machine="cpu")
    assert resolved.run.model.hidden_size == 64
    assert resolved.notes == ()


def test_machine_name_comes_from_the_caller_or_set():
    assert resolve(env={"MACHINE": "cpu"}, machine="cpu").origins["machine"] == Origin("env", "MACHINE")
    chosen = resolve(env={}, overrides={"machine": "generic"}, machine="cpu")
    assert chosen.run.machine == "generic"
    assert chosen.run.model.hidden_size == 4096


def _another(name: str, current: Any) -> str:
    """Return text of a valid value of the setting that differs from ``current``."""
    field = fields()[name]
    kind = field.annotation
    if get_args(kind):
        others = [str(choice) for choice in get_args(kind) if choice != current]
        return others[0] if others else str(current)
    if kind is bool:
        return "0" if current else "1"
    if kind is str:
        return "7B" if name == "preset" and current != "7B" else "elsewhere"
    for candidate in ("6144", "0.5", "7", "0.25"):
        try:
            if parse(candidate, field) != current:
                return candidate
        except ValueError:
            continue
    raise AssertionError(f"no other value of {name}")


@pytest.mark.parametrize("preset", sorted(presets()))
@pytest.mark.parametrize("machine", ["cpu", "generic"])
def test_every_setting_overrides_every_preset(preset, machine):
    base = resolve(preset, env={}, machine=machine).run
    names = [name for name, _ in settings() if name not in ("preset", "machine", "config_file")]
    texts = {name: _another(name, value_of(base, name)) for name in names}
    from_env = resolve(preset, env={names_of(name)[0]: text for name, text in texts.items()}, machine=machine)
    from_cli = resolve(preset, env={names_of(name)[0]: "" for name in names}, overrides=texts, machine=machine)
    for name, text in texts.items():
        assert value_of(from_env.run, name) == value_of(from_cli.run, name) == parse(text, fields()[name]), name
        assert from_env.origins[name] == Origin("env", names_of(name)[0])
        assert from_cli.origins[name] == Origin("cli", f"--set {name}")


def test_every_variable_works_alone():
    base = resolve("gpt3-175B", env={}, machine="cpu").run
    for name, field in settings():
        if name in ("preset", "machine", "config_file"):
            continue
        text = _another(name, value_of(base, name))
        for variable in names_of(name):
            resolved = resolve("gpt3-175B", env={variable: text}, machine="cpu")
            assert value_of(resolved.run, name) == parse(text, field), variable
            assert resolved.origins[name] == Origin("env", variable)


def test_duplicate_key_in_yaml_is_refused(tmp_path):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "mine.yaml").write_text("settings:\n  parallel.tensor: 2\n  parallel.tensor: 4\n")
    with pytest.raises(ConfigError, match=r"machine mine.yaml:3: .*'parallel.tensor' is given twice"):
        resolve(env={}, machine="mine", root=tmp_path)


@pytest.mark.parametrize(
    ("switch", "name", "value"),
    [
        ("USE_DISTRIBUTED_OPTIMIZER", "parallel.zero_stage", 1),
        ("RECOMPUTE_ACTIVATIONS", "recompute.granularity", "selective"),
        ("USE_ACTIVATION_CHECKPOINTING", "recompute.granularity", "full"),
        ("CHECKPOINT_ACTIVATIONS", "recompute.granularity", "full"),
        ("DEEPSPEED_ACTIVATION_CHECKPOINTING", "recompute.engine", "deepspeed"),
        ("DISTRIBUTE_SAVED_ACTIVATIONS", "recompute.engine", "deepspeed"),
        ("DISTRIBUTE_SAVED_ACTIVATIONS", "recompute.partition_activations", True),
        ("CPU_OPTIMIZER", "deepspeed.offload_optimizer", "cpu"),
        ("NO_LOAD_OPTIM", "checkpoint.load_optim", False),
        ("NO_LOAD_RNG", "checkpoint.load_rng", False),
        ("NO_SAVE_OPTIM", "checkpoint.save_optim", False),
        ("NO_SAVE_RNG", "checkpoint.save_rng", False),
        ("OVERRIDE_CKPT_OPT_PARAM", "checkpoint.schedule", "override"),
        ("NO_TENSORBOARD", "track.tensorboard", "off"),
        ("WANDB_DISABLED", "track.wandb_mode", "disabled"),
    ],
)
def test_switches_of_other_toolkits(switch, name, value):
    on, off = (resolve(env={switch: word}, machine="generic") for word in ("yes", "off"))
    assert (value_of(on.run, name), str(on.origins[name])) == (value, f"env {switch}")
    assert str(off.origins[name]) == "default"


@pytest.mark.parametrize(
    ("env", "overrides", "machine", "split", "told"),
    [
        ({"SPLIT": "98,2,0"}, {}, "cpu", "98,2,0", ""),
        (
            {"TRAIN_SPLIT": "5"},
            {"data.split": "98,2,0"},
            "cpu",
            "98,2,0",
            "TRAIN_SPLIT=5.0 (env TRAIN_SPLIT) is overridden by SPLIT=98,2,0 (cli --set data.split)",
        ),
        (
            {"SPLIT": "98,2,0"},
            {"data.val_split": "5"},
            "generic",
            "",
            "SPLIT=98,2,0 (env SPLIT) is overridden by VAL_SPLIT=5.0 (cli --set data.val_split)",
        ),
    ],
)
def test_of_the_two_ways_to_split_the_higher_layer_wins(env, overrides, machine, split, told):
    resolved = resolve(env=env, overrides=overrides, machine=machine)
    assert resolved.run.data.split == split
    assert [note for note in resolved.notes if "SPLIT" in note] == ([told] if told else [])


@pytest.mark.parametrize("mode", ["", "online", "offline", "disabled"])
def test_wandb_disabled_overrides_its_mode(mode):
    found = resolve(env={"WANDB_DISABLED": "1", "WANDB_MODE": mode}, machine="generic")
    assert found.run.track.wandb_mode == "disabled"
    assert str(found.origins["track.wandb_mode"]) == "env WANDB_DISABLED"
