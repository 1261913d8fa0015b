"""Which differences between a checkpoint and a run matter."""

from dataclasses import replace

import pytest

from megads.checkpoint.format.manifest import File, read_manifest
from megads.checkpoint.resume.compatibility import (
    LORA,
    SHAPE_SETTINGS,
    changes,
    check_model,
    dropout_change,
    engine_change,
    resume_notes,
    shape_of,
)
from megads.config.schema import DataConfig, ModelConfig, OptimConfig, RunConfig, TrainConfig
from megads.errors import CheckpointError
from tests.checkpoint.faked import derived, fake

SAME = [
    {},
    {"VOCAB_MULTIPLE": "64"},
    {"SEQ": "16"},
    {"MAX_POSITIONS": "1000"},
    {"ROPE_LOW_FREQ_FACTOR": "2"},
    {"HIDDEN_DROPOUT": "0.1"},
    {"INIT_METHOD_STD": "1"},
]
GPT = {"MODEL_FAMILY": "gpt"}


@pytest.mark.parametrize("env", SAME)
def test_weights_mean_the_same(tmp_path, env):
    path = fake(tmp_path, 5)
    check_model(path, read_manifest(path), derived(env))


def test_rotary_settings_say_nothing_of_learned_positions(tmp_path):
    path = fake(tmp_path, 5, derived(GPT))
    check_model(path, read_manifest(path), derived(GPT, ROPE_THETA="1", ROPE_SCALING="linear"))
    with pytest.raises(CheckpointError, match="has max_positions=32, this run asks for 64; "):
        check_model(path, read_manifest(path), derived(GPT, SEQ="64"))


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"NLAYERS": "3"}, "has num_layers=2, this run asks for 3; USE_CHECKPOINT_ARGS=1 takes"),
        ({"VOCAB_SIZE": "99"}, "has vocab_size=100, this run asks for 99; "),
        ({"ROPE_THETA": "1e4"}, "has rope_theta=50000.0, this run asks for 10000.0; "),
        ({"ROPE_SCALING": "linear"}, "has rope_scaling=none, this run asks for linear; "),
        ({"NORM_EPSILON": "1e-6"}, "has norm_epsilon=1e-05, this run asks for 1e-06; "),
        (
            {"NLAYERS": "3", "HIDDEN": "128", "NUM_KV_HEAD": "2"},
            "has num_layers=2 and hidden_size=64 and num_kv_heads=4, this run asks for 3 and 128 and 2 "
            "(2 more differ); ",
        ),
    ],
)
def test_another_model_is_refused_by_its_first_differences(tmp_path, env, told):
    path = fake(tmp_path, 5)
    with pytest.raises(CheckpointError) as caught:
        check_model(path, read_manifest(path), derived(env))
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_setting_that_the_checkpoint_does_not_know_had_its_default(tmp_path):
    run = derived()
    model = {key: value for key, value in shape_of(run).items() if not key.startswith("rope_scaling")}
    path = fake(tmp_path, 5, model=model)
    check_model(path, read_manifest(path), run)
    with pytest.raises(CheckpointError, match="rope_scaling=none"):
        check_model(path, read_manifest(path), derived(ROPE_SCALING="llama3"))


def test_longer_samples_than_the_model_can_see_are_refused(tmp_path):
    path = fake(tmp_path, 0, about={"max_seq_length": 24})
    with pytest.raises(CheckpointError, match="a context of 24 tokens, and SEQ=32; use SEQ=24 or less"):
        check_model(path, read_manifest(path), derived())
    check_model(path, read_manifest(path), derived(SEQ="24"))


def test_the_shape_is_of_a_run_or_its_model():
    run = derived()
    assert shape_of(run) == shape_of(run.model)
    assert tuple(shape_of(run)) == tuple(key for key in SHAPE_SETTINGS if key not in LORA)
    assert tuple(shape_of(run.model.model_copy(update={"lora_rank": 2}))) == SHAPE_SETTINGS
    assert set(SHAPE_SETTINGS) < set(ModelConfig.model_fields)


def planned(**train):
    return RunConfig(train=TrainConfig(**{"global_batch": 8, "train_iters": 100, **train}))


def test_settings_of_the_science_that_differ_are_named():
    before = planned().model_dump()
    assert list(changes(before, planned())) == []
    after = planned().model_copy(update={"optim": OptimConfig(lr=1e-3)})
    assert list(changes(before, after)) == ["had optim.lr=0.0002, this run has 0.001"]
    assert list(changes({}, after)) == []
    free = planned(exit_duration_min=5, micro_batch=2, exit_interval=7)
    assert list(changes(before, free)) == []


def test_another_number_of_samples_is_told_with_what_it_means():
    (iters, samples) = changes(planned().model_dump(), planned(train_iters=200))
    assert iters == "had train.train_iters=100, this run has 200"
    assert samples == (
        "planned 800 samples, this run plans 1600: the sample order changes, and samples may repeat; "
        "PLANNED_ITERS from the first step on avoids that"
    )
    (_, shorter) = changes(planned().model_dump(), planned(train_iters=50))
    assert shorter.endswith("samples may repeat; PLANNED_SAMPLES=800 keeps it")


def test_a_run_that_grows_within_its_plan_changes_nothing():
    before = planned(planned_iters=200, planned_samples=1600).model_dump()
    assert list(changes(before, planned(train_iters=200))) == []
    assert list(changes(before, planned(train_iters=150, planned_samples=1600))) == []


def test_a_growing_order_is_that_of_a_longer_run():
    growing = {"data": DataConfig(sample_order="growing")}
    before, longer = planned().model_copy(update=growing).model_dump(), planned(train_iters=200)
    assert list(changes(before, longer.model_copy(update=growing))) == ["had train.train_iters=100, this run has 200"]
    assert any("the sample order changes" in line for line in changes(before, longer))


DROPPED = {"HIDDEN_DROPOUT": "0.1", "ATTENTION_DROPOUT": "0.1"}


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, ""),
        ({"ZERO_STAGE": "3"}, ""),
        ({"PP": "2"}, ""),
        ({"RECOMPUTE": "full"}, ""),
        ({"TP": "2"}, "dropout masks differ with another TP (1, now 2)"),
        ({"SP": "2"}, "dropout masks differ with another SP (1, now 2)"),
        # Between the layers every tensor rank holds all, and drops the same.
        ({"TP": "2", "ATTENTION_DROPOUT": "0"}, ""),
        (
            {"TP": "2", "ATTENTION_DROPOUT": "0", "SCATTER_NORMS": "1"},
            "dropout masks differ with another TP (1, now 2), SCATTER_NORMS (0, now 1)",
        ),
        ({"MICRO_BATCH": "2"}, "dropout masks differ with another MICRO_BATCH (1, now 2)"),
    ],
)
def test_a_resume_says_when_dropout_draws_other_numbers(tmp_path, env, told):
    one = {**DROPPED, "GLOBAL_BATCH": "4", "MICRO_BATCH": "1"}
    manifest = read_manifest(fake(tmp_path, 5, derived(one)))
    assert dropout_change(manifest, derived({**one, **env}), "cpu") == told
    without = {**one, **env, "HIDDEN_DROPOUT": "0", "ATTENTION_DROPOUT": "0"}
    assert dropout_change(manifest, derived(without), "cpu") == ""


def test_a_resume_says_when_dropout_is_drawn_on_another_device_or_by_another_rule(tmp_path):
    run = derived(DROPPED)
    manifest = read_manifest(fake(tmp_path / "a", 5, run, about={"device": "cpu"}))
    assert dropout_change(manifest, run, "cpu") == ""
    assert dropout_change(manifest, run, "cuda") == "dropout masks differ with another device (cpu, now cuda)"
    old = replace(manifest, files={"rank-00000.safetensors": File(1, 2, 0, "0-0-0")})
    assert dropout_change(old, run, "cpu").startswith("was written by a version that saved RNG state for dropout")
    assert dropout_change(old, derived(HIDDEN_DROPOUT="0"), "cpu") == ""


@pytest.mark.parametrize(("was", "now"), [("deepspeed", "native"), ("native", "deepspeed")])
def test_a_resume_says_when_another_engine_continues(tmp_path, was, now):
    before, after = derived(ENGINE=was), derived(ENGINE=now)
    manifest = read_manifest(fake(tmp_path / "a", 5, before))
    line = f"was written by ENGINE={was}, this run has {now}: equal up to rounding, not bitwise"
    assert engine_change(manifest, after) == line
    assert resume_notes(manifest, after) == [line]
    assert resume_notes(manifest, before) == []
    assert engine_change(read_manifest(fake(tmp_path / "b", 0, before, progress={})), after) == ""


def test_a_checkpoint_that_names_no_engine_is_one_of_deepspeed(tmp_path):
    manifest = read_manifest(fake(tmp_path, 5, about={}))
    assert engine_change(manifest, derived(ENGINE="deepspeed")) == ""
    assert "ENGINE=deepspeed, this run has native" in engine_change(manifest, derived(ENGINE="native"))
