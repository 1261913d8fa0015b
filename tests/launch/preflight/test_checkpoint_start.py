"""What the launcher reads of the checkpoint that a run starts from."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.resume.compatibility import resume_notes, shape_of
from megads.config.run_folder import CONFIG, load_config, note_saved, save_config
from megads.config.setting import Origin
from megads.config.sources.resolve import Resolved, resolve
from megads.errors import CheckpointError
from megads.launch.job import write_run_files
from megads.launch.plan_run import prepare
from megads.launch.preflight.checkpoint_start import (
    Saved,
    checkpoint_layer,
    difference_lines,
    find_start_point,
    resume_from_saved,
    settings_used_once,
    start_line,
)
from megads.launch.request import TrainRequest, resolve_request
from tests.checkpoint.convert.megatron.samples import save_ours
from tests.checkpoint.faked import TINY, derived, fake
from tests.models import shapes

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _runs_of_their_own(tmp_path, monkeypatch):
    """Keep the runs of a checkout, which a user may have made there, out of it."""
    monkeypatch.chdir(tmp_path)


def test_the_banner_says_what_begins_and_with_what(tmp_path):
    run_dir, everything = tmp_path / "r", "weights, optimizer and position"
    assert start_line(derived(), find_start_point(derived(), run_dir)) == "random weights, seed 1234"
    path = fake(tmp_path / "other", 50)
    tuned = derived(LOAD=str(tmp_path / "other"), FINETUNE="1")
    assert start_line(tuned, find_start_point(tuned, run_dir)) == (
        f"{path} of iteration 50: weights, not optimizer or position; starts at iteration 0"
    )
    fake(run_dir / "checkpoints", 7, tuned)
    assert start_line(tuned, find_start_point(tuned, run_dir)) == (
        f"resuming from iteration 7: {everything}; LOAD={tmp_path}/other applies to a new run only"
    )
    other_places = derived(TP="2", NGPU_PER_HOST="2", LOAD="", GLOBAL_BATCH="8", DP="1")
    line = start_line(other_places, find_start_point(other_places, run_dir))
    assert line == "resuming from iteration 7: weights, optimizer and position"


def test_a_dry_run_shows_what_the_resume_would_report(tmp_path):
    progress = {"iteration": 6, "scheduled_samples": 48}
    path = fake(tmp_path / "checkpoints", 6, derived(LR="0.01"), progress=progress)
    now = derived(LR="0.02", CLIP_GRAD="0.5")
    lines = difference_lines(now, find_start_point(now, tmp_path))
    assert "checkpoint had optim.lr=0.01, this run has 0.02" in lines
    assert [line for line in lines if "had a learning rate of" in line]
    assert lines == [f"checkpoint {line}" for line in resume_notes(read_manifest(path), now)]
    same = derived(LR="0.01")
    assert difference_lines(same, find_start_point(same, tmp_path)) == []
    tuned = derived(LR="0.02", LOAD=str(tmp_path / "checkpoints"), FINETUNE="1")
    assert difference_lines(tuned, find_start_point(tuned, tmp_path / "new")) == []


def test_what_starts_a_new_run_instead_of_a_checkpoint_of_another_model_does(tmp_path):
    other, own = tmp_path / "other", tmp_path / "r/checkpoints"
    fake(other, 50)

    def refused(told, **env):
        with pytest.raises(CheckpointError) as caught:
            find_start_point(derived(NLAYERS="3", **env), tmp_path / "r")
        assert str(caught.value).endswith(f"takes the checkpoint's model, {told} starts a new run")

    refused("leaving LOAD unset", LOAD=str(other))
    assert find_start_point(derived(NLAYERS="3"), tmp_path / "r") is None
    fake(own, 7)
    refused("another RUN_NAME or RUN_DIR")
    # Its own checkpoint comes first, and in a new folder LOAD would.
    refused("another RUN_NAME or RUN_DIR with LOAD unset", LOAD=str(other))
    refused("another RUN_NAME or RUN_DIR with LOAD unset", LOAD=str(own))
    refused("another CKPT_DIR", CKPT_DIR=str(own))
    assert find_start_point(derived(NLAYERS="3"), tmp_path / "r-2") is None


GPT = {"MODEL_FAMILY": "gpt", "VOCAB_SIZE": "300", "VOCAB_MULTIPLE": "1", "SEQ": "16"}


def asked(tmp_path, **env):
    return TrainRequest(None, (), {"MACHINE": "cpu", "USE_CHECKPOINT_ARGS": "1", **env}, "h", ROOT, sys.executable)


def test_the_model_is_the_checkpoints_and_the_user_is_told_where_that_differs(tmp_path):
    path = fake(tmp_path / "imported", 0, derived(GPT), kinds=("weight",), settings={}, progress={})
    ask = asked(tmp_path, LOAD=str(tmp_path / "imported"), HIDDEN="128", NLAYERS="2", SEQ="16")
    resolved = resolve_request(dataclasses.replace(ask, preset="7B"), "cpu", 1)
    wanted = shape_of(derived(GPT))
    # What says nothing of a model without rotary positions stays what it is.
    taken = {name: value for name, value in wanted.items() if not name.startswith("rope_")}
    assert {name: getattr(resolved.run.model, name) for name in taken} == taken
    assert resolved.run.model.rope_theta == 50000.0
    assert resolved.origins["model.hidden_size"] == Origin("checkpoint", str(path))
    notes = [note for note in resolved.notes if "is overridden by" in note]
    assert notes == [f"HIDDEN=128 (env HIDDEN) is overridden by 64 (checkpoint {path})"]


@pytest.mark.parametrize(
    ("model", "family"), [(shapes.T5, "t5"), (shapes.BERT, "bert"), (shapes.GPT, "llama")], ids=["t5", "bert", "gpt"]
)
def test_what_is_imported_says_whether_it_is_an_encoder(tmp_path, model, family):
    """The family of a decoder is the user's; the samples of BERT and T5 follow from it."""
    save_ours(tmp_path / "imported", model)
    layer = checkpoint_layer(resolve(env={"LOAD": str(tmp_path / "imported")}, machine="cpu").run)
    assert layer.settings.get("model.family", "llama") == family
    env = {"VOCAB_SIZE": "53", "TOKENIZER_TYPE": "NullTokenizer"}
    run = resolve_request(asked(tmp_path, LOAD=str(tmp_path / "imported"), **env), "cpu", 1).run
    assert (run.model.family, run.model.num_layers) == (family, model.num_layers)


def test_its_tokenizer_is_taken_unless_the_user_names_one(tmp_path):
    about = {"tokenizer_type": "HFTokenizer", "tokenizer_model": "/there"}
    fake(tmp_path / "imported", 0, about=about, settings={})
    fake(tmp_path / "own", 5, derived(VOCAB_SIZE="77"), about=about)
    taken = resolve_request(asked(tmp_path, LOAD=str(tmp_path / "imported")), "cpu", 1).run.data
    assert (taken.tokenizer_type, taken.tokenizer_model) == ("HFTokenizer", "/there")
    mine = resolve_request(asked(tmp_path, LOAD=str(tmp_path / "imported"), TOKENIZER_MODEL="/here"), "cpu", 1)
    assert mine.run.data.tokenizer_model == "/here"
    told = f"is used, not /there (checkpoint {tmp_path}/imported/iter_0000000)"
    assert f"TOKENIZER_MODEL=/here (env TOKENIZER_MODEL) {told}" in mine.notes
    # A run knows what it used, whatever its model was once imported with.
    assert (
        resolve_request(asked(tmp_path, LOAD=str(tmp_path / "own")), "cpu", 1).run.data.tokenizer_type
        == "NullTokenizer"
    )


def test_its_own_newest_checkpoint_says_the_model_too(tmp_path):
    fake(tmp_path / "r/checkpoints", 5, derived(NLAYERS="3"))
    layer = checkpoint_layer(resolve(env={"RUN_DIR": str(tmp_path / "r")}, machine="cpu").run)
    assert layer.settings["model.num_layers"] == 3
    with pytest.raises(CheckpointError, match="USE_CHECKPOINT_ARGS=1 needs a checkpoint, and there is none in "):
        checkpoint_layer(resolve(env={"RUN_DIR": str(tmp_path / "none")}, machine="cpu").run)


def finished(folder, *, until=12, **settings):
    """Make a run that is complete, and has a checkpoint."""
    fake(folder / "checkpoints", until, derived(**settings))
    (folder / "outcome.json").write_text(json.dumps({"exit_code": 0, "message": "", "iteration": until}))


@pytest.mark.parametrize("fresh", [False, True])
def test_the_model_of_load_is_trained_beside_a_complete_run(tmp_path, monkeypatch, fresh):
    """As in ``import-hf Llama-3-8B ckpt && LOAD=ckpt USE_CHECKPOINT_ARGS=1 bash train_7B.sh``, after a first run."""
    monkeypatch.chdir(tmp_path)
    finished(tmp_path / "runs/llama")
    fake(tmp_path / "ckpt", 0, derived(NLAYERS="3"))
    few = {name: value for name, value in TINY.items() if name not in ("NLAYERS", "HIDDEN", "HEADS")}
    call = dataclasses.replace(asked(tmp_path, LOAD="ckpt", **few), fresh=fresh)
    assert resolve_request(call, "cpu", 1).run.model.num_layers == 3
    # A name means that folder, whose own model comes first; so does a batch job, which leaves a complete run alone.
    for env in ({"RUN_NAME": "llama"}, {"SLURM_JOB_ID": "7"}) if not fresh else ():
        named = dataclasses.replace(call, env={**call.env, **env})
        assert resolve_request(named, "cpu", 1).run.model.num_layers == 2


def test_the_folder_may_be_known_only_when_the_steps_are(tmp_path, monkeypatch):
    """TRAIN_SAMPLES gives the number of steps in ``derive``; the model is that of the folder all the same."""
    monkeypatch.chdir(tmp_path)
    demo = {"TOKENIZER_TYPE": "HFTokenizer", "VOCAB_SIZE": "512"}
    finished(tmp_path / "runs/tiny", **demo)
    fake(tmp_path / "ckpt", 0, derived(NLAYERS="3", **demo))
    env = {"MACHINE": "cpu", "USE_CHECKPOINT_ARGS": "1", "LOAD": "ckpt", "SEQ": "32", "TRAIN_SAMPLES": "96"}
    env |= {"GLOBAL_BATCH": "8", "MICRO_BATCH": "8", "DATA_CACHE_PATH": str(tmp_path), **demo}
    env |= {"DEMO_VOCAB_SIZE": "512", "DEMO_BYTES": "300000"}
    job = prepare(TrainRequest("tiny", (), env, "h", ROOT, sys.executable))
    assert (job.run.model.num_layers, str(job.folder.path)) == (3, "runs/tiny-2")


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
    run = derived(CKPT_STEP="50", NO_LOAD_OPTIM="1", SAVE_INTERVAL="7")
    save_config(run, {}, tmp_path / CONFIG)
    resume_from_saved(tmp_path, Resolved(run, {}))
    found = load_config(tmp_path / CONFIG)
    assert (found.checkpoint.step, found.checkpoint.load_optim) == (0, True)
    assert found.checkpoint.save_interval == 7
    own = tmp_path / "checkpoints"
    for load, kept in ((own / "iter_0000050", ""), (own, str(own)), (tmp_path / "other/iter_0000050", None)):
        run = derived(LOAD=str(load))
        save_config(run, {}, tmp_path / CONFIG)
        resume_from_saved(tmp_path, Resolved(run, {}))
        assert load_config(tmp_path / CONFIG).checkpoint.load == (str(load) if kept is None else kept)
    save_config(derived(NO_LOAD_OPTIM="1", NO_SAVE_OPTIM="1"), {}, tmp_path / CONFIG)
    resume_from_saved(tmp_path, Resolved(run, {}))
    assert not load_config(tmp_path / CONFIG).checkpoint.load_optim


def test_which_settings_are_of_the_beginning(tmp_path):
    back = {"CKPT_STEP": "5", "NO_LOAD_OPTIM": "1"}
    own = tmp_path / "checkpoints"
    assert settings_used_once(derived(back), tmp_path) == ["checkpoint.step", "checkpoint.load_optim"]
    assert settings_used_once(derived(LOAD=str(own / "iter_0000005")), tmp_path) == ["checkpoint.load"]
    assert settings_used_once(derived(NO_LOAD_OPTIM="1", NO_SAVE_OPTIM="1"), tmp_path) == []
    assert settings_used_once(derived(back, LOAD=str(tmp_path / "other")), tmp_path) == []


def test_the_line_that_goes_on_does_not_go_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake(tmp_path / "r/checkpoints", 5)
    env = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **{**TINY, "DATA_CACHE_PATH": str(tmp_path), "TOKENIZER_TYPE": "HFTokenizer", "DEMO_VOCAB_SIZE": "512"},
        **{"MACHINE": "cpu", "MEGADS_DEVICE": "cpu", "RUN_DIR": "r", "CKPT_STEP": "5", "VOCAB_SIZE": "512"},
    }
    fake(tmp_path / "r/checkpoints", 9, derived(VOCAB_SIZE="512"))
    words = ("train", "--no-load-optim", "--ckpt-step", "9")
    flags = (("--no-load-optim", ""), ("--ckpt-step", "9"))
    job = prepare(TrainRequest(None, (), env, "h", ROOT, sys.executable, words, flags))
    assert job.start_point is not None
    assert job.start_point.iteration == 9
    write_run_files(job)
    command = tmp_path / "r/command.txt"
    # As long as nothing new was saved the run has to go back again.
    assert command.read_text().endswith(" megads train --no-load-optim --ckpt-step 9\n")
    note_saved(tmp_path / "r")
    assert command.read_text().endswith(" megads train\n")
    assert "CKPT_STEP" not in command.read_text()
    before = command.read_text()
    note_saved(tmp_path / "r")
    assert command.read_text() == before
    env |= {"LOAD": "r/checkpoints/iter_0000009", "CKPT_STEP": ""}
    write_run_files(prepare(TrainRequest(None, (), env, "h", ROOT, sys.executable, ("train",))))
    assert "LOAD=" in command.read_text()
    note_saved(tmp_path / "r")
    assert "LOAD=" not in command.read_text()
