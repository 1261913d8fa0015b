"""What the launcher reads of the checkpoint that a run starts from."""

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from megads.checkpoint.match import shape_of
from megads.config.files import CONFIG, load_config, note_saved, save_config
from megads.config.resolve import Resolved, resolve
from megads.config.setting import Origin
from megads.errors import CheckpointError
from megads.launch.ask import Ask, resolve_ask
from megads.launch.job import prepare, write_run_files
from megads.launch.origin import (
    Saved,
    beginning_only,
    checkpoint_layer,
    find_beginning,
    go_on,
    keep_schedule,
    start_line,
)
from megads.train.schedule import Schedule
from tests.checkpoint.faked import TINY, derived, fake

ROOT = Path(__file__).parents[2]


def test_the_banner_says_what_begins_and_with_what(tmp_path):
    run_dir, everything = tmp_path / "r", "weights, optimizer, generators and position"
    assert start_line(derived(), find_beginning(derived(), run_dir)) == "new weights, seed 1234"
    path = fake(tmp_path / "other", 50)
    tuned = derived(LOAD=str(tmp_path / "other"), FINETUNE="1")
    assert start_line(tuned, find_beginning(tuned, run_dir)) == (
        f"{path} of iteration 50: weights, not optimizer, generators or position; begins at iteration 0"
    )
    fake(run_dir / "checkpoints", 7, tuned)
    assert start_line(tuned, find_beginning(tuned, run_dir)) == (
        f"goes on from its own iteration 7: {everything}; LOAD={tmp_path}/other was for its beginning"
    )
    other_places = derived(TP="2", NGPU_PER_HOST="2", LOAD="", GLOBAL_BATCH="8", DP="1")
    line = start_line(other_places, find_beginning(other_places, run_dir))
    assert line == "goes on from its own iteration 7: weights, optimizer and position, not generators"


def test_the_schedule_that_is_kept_gives_the_same_rate_for_the_same_samples(tmp_path):
    before = derived(LR="0.01", MIN_LR="0.001", LR_DECAY_STYLE="linear", LR_WARMUP_ITERS="4", LR_DECAY_ITERS="20")
    fake(tmp_path / "checkpoints", 6, before)
    now = derived(SCHEDULE_ON_RESUME="keep", GLOBAL_BATCH="16", LR="0.5", TRAIN_ITERS="100")
    resolved = Resolved(now, dict.fromkeys(_names(now), Origin("env", "X")))
    kept = keep_schedule(resolved, find_beginning(now, tmp_path))
    assert (kept.run.optim.lr, kept.run.optim.lr_decay_iters, kept.run.optim.lr_warmup_iters) == (0.01, 10, 2)
    old, new = Schedule.of(before), Schedule.of(kept.run)
    for samples in range(0, 400, 16):
        assert new.lr(samples) == pytest.approx(old.lr(samples))
    path = tmp_path / "checkpoints/iter_0000006"
    assert kept.origins["optim.lr"] == Origin("checkpoint", str(path))
    assert f"LR=0.5 (env X) gives way to 0.01 (checkpoint {path})" in kept.notes
    assert kept.run.train == now.train


def _names(run):
    return [f"optim.{name}" for name in type(run.optim).model_fields]


def test_a_schedule_is_kept_only_where_one_goes_on(tmp_path):
    imported = tmp_path / "imported"
    fake(imported, 0, kinds=("weight",), settings={}, progress={})
    keep = {"SCHEDULE_ON_RESUME": "keep", "LOAD": str(imported)}
    for settings in ({}, {"SCHEDULE_ON_RESUME": "keep"}, {**keep, "FINETUNE": "1"}):
        run = derived(settings)
        resolved = Resolved(run, {})
        assert keep_schedule(resolved, find_beginning(run, tmp_path / "r")) is resolved
    run = derived(keep)
    (note,) = keep_schedule(Resolved(run, {}), find_beginning(run, tmp_path / "r")).notes
    assert note == f"SCHEDULE_ON_RESUME=keep: {imported}/iter_0000000 has no schedule; what is set now is used"


GPT = {"MODEL_FAMILY": "gpt", "VOCAB_SIZE": "300", "VOCAB_MULTIPLE": "1", "SEQ": "16"}


def asked(tmp_path, **env):
    return Ask(None, (), {"MACHINE": "cpu", "USE_CHECKPOINT_ARGS": "1", **env}, "h", ROOT, sys.executable)


def test_the_model_is_the_checkpoints_and_the_user_is_told_where_that_differs(tmp_path):
    path = fake(tmp_path / "imported", 0, derived(GPT), kinds=("weight",), settings={}, progress={})
    ask = asked(tmp_path, LOAD=str(tmp_path / "imported"), HIDDEN="128", NLAYERS="2", SEQ="16")
    resolved = resolve_ask(dataclasses.replace(ask, preset="7B"), "cpu", 1)
    wanted = shape_of(derived(GPT))
    # What says nothing of a model without rotary positions stays what it is.
    taken = {name: value for name, value in wanted.items() if not name.startswith("rope_")}
    assert {name: getattr(resolved.run.model, name) for name in taken} == taken
    assert resolved.run.model.rope_theta == 50000.0
    assert resolved.origins["model.hidden_size"] == Origin("checkpoint", str(path))
    notes = [note for note in resolved.notes if "gives way" in note]
    assert notes == [f"HIDDEN=128 (env HIDDEN) gives way to 64 (checkpoint {path})"]


def test_its_tokenizer_is_taken_unless_the_user_names_one(tmp_path):
    about = {"tokenizer_type": "HFTokenizer", "tokenizer_model": "/there"}
    fake(tmp_path / "imported", 0, about=about, settings={})
    fake(tmp_path / "own", 5, derived(VOCAB_SIZE="77"), about=about)
    taken = resolve_ask(asked(tmp_path, LOAD=str(tmp_path / "imported")), "cpu", 1).run.data
    assert (taken.tokenizer_type, taken.tokenizer_model) == ("HFTokenizer", "/there")
    mine = resolve_ask(asked(tmp_path, LOAD=str(tmp_path / "imported"), TOKENIZER_MODEL="/here"), "cpu", 1)
    assert mine.run.data.tokenizer_model == "/here"
    told = f"is used, not /there (checkpoint {tmp_path}/imported/iter_0000000)"
    assert f"TOKENIZER_MODEL=/here (env TOKENIZER_MODEL) {told}" in mine.notes
    # A run knows what it used, whatever its model was once imported with.
    assert resolve_ask(asked(tmp_path, LOAD=str(tmp_path / "own")), "cpu", 1).run.data.tokenizer_type == "NullTokenizer"


def test_its_own_newest_checkpoint_says_the_model_too(tmp_path):
    fake(tmp_path / "r/checkpoints", 5, derived(NLAYERS="3"))
    layer = checkpoint_layer(resolve(env={"RUN_DIR": str(tmp_path / "r")}, machine="cpu").run)
    assert layer.settings["model.num_layers"] == 3
    with pytest.raises(CheckpointError, match="USE_CHECKPOINT_ARGS=1 needs a checkpoint, and there is none in "):
        checkpoint_layer(resolve(env={"RUN_DIR": str(tmp_path / "none")}, machine="cpu").run)


def test_what_was_saved_since_is_told_from_what_was_there(tmp_path):
    for iteration in (50, 100):
        fake(tmp_path, iteration)
    saved = Saved(tmp_path, first=50)
    assert (saved.newest(), saved.is_any()) == (50, False)
    (tmp_path / "iter_0000100").rename(tmp_path / "iter_0000100.gone.tmp")
    fake(tmp_path, 60)
    assert (saved.newest(), saved.is_any()) == (60, True)
    fake(tmp_path, 100)  # of the same name, and new
    assert saved.newest() == 100
    assert Saved(tmp_path / "none").newest() == 0


def test_what_ranks_put_aside_is_not_what_the_run_goes_on_from(tmp_path):
    for iteration in (50, 100, 150):
        fake(tmp_path, iteration)
    saved = Saved(tmp_path, first=100)
    (tmp_path / "iter_0000100").rename(tmp_path / "iter_0000100.damaged")
    assert (saved.newest(), saved.since(), saved.is_any()) == (50, 0, False)


def test_another_start_goes_on_from_what_was_saved_since(tmp_path):
    run = derived(CKPT_STEP="50", NO_LOAD_OPTIM="1", NO_LOAD_RNG="1", SAVE_INTERVAL="7")
    save_config(run, {}, tmp_path / CONFIG)
    go_on(tmp_path, Resolved(run, {}))
    found = load_config(tmp_path / CONFIG)
    assert (found.checkpoint.step, found.checkpoint.load_optim, found.checkpoint.load_rng) == (0, True, True)
    assert found.checkpoint.save_interval == 7
    own = tmp_path / "checkpoints"
    for load, kept in ((own / "iter_0000050", ""), (own, str(own)), (tmp_path / "other/iter_0000050", None)):
        run = derived(LOAD=str(load))
        save_config(run, {}, tmp_path / CONFIG)
        go_on(tmp_path, Resolved(run, {}))
        assert load_config(tmp_path / CONFIG).checkpoint.load == (str(load) if kept is None else kept)
    save_config(derived(NO_LOAD_OPTIM="1", NO_SAVE_OPTIM="1"), {}, tmp_path / CONFIG)
    go_on(tmp_path, Resolved(run, {}))
    assert not load_config(tmp_path / CONFIG).checkpoint.load_optim


def test_which_settings_are_of_the_beginning(tmp_path):
    back = {"CKPT_STEP": "5", "NO_LOAD_OPTIM": "1"}
    own = tmp_path / "checkpoints"
    assert beginning_only(derived(back), tmp_path) == ["checkpoint.step", "checkpoint.load_optim"]
    assert beginning_only(derived(NO_LOAD_RNG="1", LOAD=str(own)), tmp_path) == ["checkpoint.load_rng"]
    assert beginning_only(derived(LOAD=str(own / "iter_0000005")), tmp_path) == ["checkpoint.load"]
    assert beginning_only(derived(NO_LOAD_OPTIM="1", NO_SAVE_OPTIM="1"), tmp_path) == []
    assert beginning_only(derived(back, LOAD=str(tmp_path / "other")), tmp_path) == []


def test_the_line_that_goes_on_does_not_go_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake(tmp_path / "r/checkpoints", 5)
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **{**TINY, "DATA_CACHE_PATH": str(tmp_path), "TOKENIZER_TYPE": "HFTokenizer", "DEMO_VOCAB_SIZE": "512"},
        **{"MACHINE": "cpu", "MEGADS_DEVICE": "cpu", "RUN_DIR": "r", "CKPT_STEP": "5", "VOCAB_SIZE": "512"},
    }
    fake(tmp_path / "r/checkpoints", 9, derived(VOCAB_SIZE="512"))
    words = ("train", "--no-load-rng", "--ckpt-step", "9")
    flags = (("--no-load-rng", ""), ("--ckpt-step", "9"))
    job = prepare(Ask(None, (), env, "h", ROOT, sys.executable, words, flags))
    assert job.begins is not None
    assert job.begins.iteration == 9
    write_run_files(job)
    command = tmp_path / "r/command.txt"
    # As long as nothing new was saved the run has to go back again.
    assert command.read_text().endswith(" megads train --no-load-rng --ckpt-step 9\n")
    note_saved(tmp_path / "r")
    assert command.read_text().endswith(" megads train\n")
    assert "CKPT_STEP" not in command.read_text()
    before = command.read_text()
    note_saved(tmp_path / "r")
    assert command.read_text() == before
    env |= {"LOAD": "r/checkpoints/iter_0000009", "CKPT_STEP": ""}
    write_run_files(prepare(Ask(None, (), env, "h", ROOT, sys.executable, ("train",))))
    assert "LOAD=" in command.read_text()
    note_saved(tmp_path / "r")
    assert "LOAD=" not in command.read_text()
