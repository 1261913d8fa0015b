"""A run begins with another's checkpoint, goes back to one of its own, and passes over what is damaged."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from megads.checkpoint.convert.writer import new_writer
from megads.checkpoint.format.folders import list_checkpoints
from megads.checkpoint.format.shard_layout import parameters_of
from megads.checkpoint.resume.compatibility import shape_of
from megads.config.schema import ModelConfig
from tests.e2e.conftest import Command
from tests.e2e.refused import refused
from tests.e2e.test_resume import wait_for_step
from tests.e2e.test_signals import ranks_in

SAVED = {"SAVE_INTERVAL": "4", "LR": "0.002", "MIN_LR": "0"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """Return a run of 12 steps with the checkpoints 4, 8 and 12."""
    command = Command(tmp_path_factory.mktemp("whole"), cache)
    done = command.train("a", **SAVED)
    assert done.returncode == 0, done.stderr
    return command


@pytest.fixture
def again(megads, whole):
    """Return a copy of the run as if it had been killed after its checkpoint 8."""
    shutil.copytree(whole.folder / "a", megads.folder / "a")
    shutil.rmtree(megads.folder / "a/checkpoints/iter_0000012")
    (megads.folder / "a/outcome.json").unlink()
    return megads


def by_step(command, run, key="lm_loss"):
    return {row["iteration"]: row[key] for row in command.rows(run) if key in row}


def steps(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in list_checkpoints(folder)]


def flip(folder: Path) -> None:
    """Change one bit in the middle of a checkpoint."""
    path = max(folder.glob("rank-*"), key=lambda file: file.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_another_run_goes_on_in_another_layout(megads, whole):
    other = str(whole.folder / "a")
    done = megads.train("b", LOAD=other, CKPT_STEP="8", TP="2", **SAVED)
    assert done.returncode == 0, done.stderr
    what = "weights, optimizer and position"
    assert f"start    {other}/checkpoints/iter_0000008 of iteration 8: {what}; starts at iteration 8\n" in done.stderr
    assert f"loaded   {what} of {other}/checkpoints/iter_0000008, iteration 8\n" in done.stderr
    losses = by_step(megads, "b")
    assert list(losses) == [9, 10, 11, 12]
    assert losses == pytest.approx({step: loss for step, loss in by_step(whole, "a").items() if step > 8}, rel=1e-5)
    assert steps(whole.folder / "a/checkpoints") == [4, 8, 12]


def test_fine_tuning_begins_with_the_weights_and_goes_on_when_submitted_again(megads, whole):
    settings = {**SAVED, "LOAD": str(whole.folder / "a"), "FINETUNE": "1"}
    first = megads.train("b", EXIT_INTERVAL="3", **settings)
    assert first.returncode == 75, first.stderr
    assert "weights, not optimizer or position; starts at iteration 0\n" in first.stderr
    assert f"start    from the weights of {whole.folder}/a/checkpoints/iter_0000012\n" in first.stderr
    assert "planned" not in first.stderr  # it is no resume: nothing of it differs from what was
    assert by_step(megads, "b", "valid_loss")[0] == pytest.approx(by_step(whole, "a", "valid_loss")[12], rel=1e-6)
    assert by_step(megads, "b", "consumed_samples")[3] == 3 * 8
    assert by_step(megads, "b", "learning_rate")[1] == 0.0
    second = megads.train("b", **settings)
    assert second.returncode == 0, second.stderr
    everything = "weights, optimizer and position"
    assert (
        f"start    resuming from iteration 3: {everything}; LOAD={settings['LOAD']} applies to a new" in second.stderr
    )
    assert list(by_step(megads, "b")) == list(range(1, 13))


def test_without_the_optimizer_the_next_step_is_the_same_and_those_after_it_are_not(megads, whole):
    settings = {**SAVED, "LOAD": str(whole.folder / "a"), "CKPT_STEP": "8", "NO_SAVE_OPTIM": "1"}
    done = megads.train("b", "--no-load-optim", "--no-load-rng", EXIT_INTERVAL="10", **settings)
    assert done.returncode == 75, done.stderr
    assert "loaded   weights and position, not optimizer of " in done.stderr
    found, expected = by_step(megads, "b"), by_step(whole, "a")
    assert found[9] == expected[9]
    assert abs(found[10] - expected[10]) > 1e-4
    # What was saved without it is not mistaken for a whole state.
    line = refused(megads, told=["has no optimizer state", "set NO_LOAD_OPTIM=1"], RUN_DIR="b", **SAVED)
    assert "FINETUNE" not in line
    assert "NO_LOAD_RNG=1 has no effect: dropout follows from the seed" in done.stderr


def test_no_steps_evaluate_a_checkpoint_and_change_nothing(megads, whole):
    found = megads.train("b", **{**SAVED, "LOAD": str(whole.folder / "a"), "TRAIN_ITERS": "0", "DP": "2"})
    assert found.returncode == 0, found.stderr
    assert "train    no step: evaluates " in found.stderr
    assert "checkpoint had" not in found.stderr
    assert "done     evaluated at iteration 12\n" in found.stderr
    assert "longer" not in found.stderr
    valid = by_step(whole, "a", "valid_loss")[12]
    assert by_step(megads, "b", "valid_loss") == {12: pytest.approx(valid, rel=1e-5)}
    assert by_step(megads, "b") == {}
    assert not (megads.folder / "b/checkpoints").exists() or not steps(megads.folder / "b/checkpoints")


def test_going_back_abandons_what_came_after(again):
    done = again.train("a", CKPT_STEP="4", EXIT_INTERVAL="6", **{**SAVED, "LR": "0.001"})
    assert done.returncode == 75, done.stderr
    assert "start    resuming from iteration 4: " in done.stderr
    assert "checkpoint had optim.lr=0.002, this run has 0.001" in done.stderr
    assert steps(again.folder / "a/checkpoints") == [4, 6]
    assert by_step(again, "a", "learning_rate").keys() == set(range(1, 7))
    # The line that resumes the run does not go back again.
    assert "CKPT_STEP" not in (again.folder / "a/command.txt").read_text()


def test_a_complete_run_goes_back_and_the_line_that_goes_on_says_so_until_something_is_saved(megads, whole):
    shutil.copytree(whole.folder / "a", megads.folder / "a")
    command = megads.folder / "a/command.txt"
    stopped = megads.train("a", CKPT_STEP="8", WALLTIME="10s", **SAVED)
    assert stopped.returncode == 75, stopped.stderr
    assert re.search(r"stopped  8 of 12 iterations; the allocation ends at .*; before the first step\n", stopped.stderr)
    assert f"resume   {command.read_text()}" in stopped.stderr
    assert "CKPT_STEP=8" in command.read_text()
    assert steps(megads.folder / "a/checkpoints") == [4, 8, 12]
    done = megads.train("a", CKPT_STEP="8", **SAVED)
    assert done.returncode == 0, done.stderr
    assert "resume   from a/checkpoints/iter_0000008, iteration 8\n" in done.stderr
    assert megads.losses("a") == whole.losses("a")
    assert "CKPT_STEP" not in command.read_text()


def wait_for_log(process, folder, text, times=1):
    """Wait until the log of the run has ``text`` so many times."""
    deadline = time.time() + 120
    while time.time() < deadline and process.poll() is None:
        if (folder / "log/run.log").read_text().count(text) >= times:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {text!r}: {process.communicate()[1] if process.poll() is not None else 'timed out'}")


def test_a_restart_goes_on_from_what_was_saved_not_from_where_the_run_went_back_to(again):
    (again.folder / "a/log/run.log").unlink()
    long = {**SAVED, "TRAIN_ITERS": "4000", "EVAL_INTERVAL": "0", "TP": "2"}
    process = again.start("train", "--max-restarts", "1", "--ckpt-step", "4", RUN_DIR="a", **long)
    wait_for_step(process, again.folder / "a", 14)
    os.kill(ranks_in(again.folder)[0], signal.SIGKILL)
    wait_for_log(process, again.folder / "a", "resume   from a/checkpoints/iter_", times=2)
    assert again("stop", "a").returncode == 0
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    first, second = re.findall(r"resume   from \S+, iteration (\d+)", err)
    assert int(first) == 4
    assert int(second) >= 12
    assert f"restart 1 of 1 from iteration {second}\n" in err


def test_the_schedule_of_the_checkpoint_is_kept_where_that_is_asked_for(again, whole):
    planned = by_step(whole, "a", "learning_rate")
    other = {**SAVED, "LR": "0.001", "LR_DECAY_STYLE": "linear", "WEIGHT_DECAY": "0.3"}
    kept = again.train("a", EXIT_INTERVAL="10", SCHEDULE_ON_RESUME="keep", **other)
    assert kept.returncode == 75, kept.stderr
    path = "a/checkpoints/iter_0000008"
    assert f"megads: LR=0.001 (env LR) is overridden by 0.002 (checkpoint {path})\n" in kept.stderr
    assert f"megads: WEIGHT_DECAY=0.3 (env WEIGHT_DECAY) is overridden by 0.1 (checkpoint {path})\n" in kept.stderr
    now = by_step(again, "a", "learning_rate")
    assert {step: now[step] for step in (9, 10)} == {step: planned[step] for step in (9, 10)}
    overridden = again.train("a", OVERRIDE_CKPT_OPT_PARAM="1", **other)
    assert overridden.returncode == 0, overridden.stderr
    assert "checkpoint had optim.lr_decay_style=cosine, this run has linear" in overridden.stderr
    # No warm-up is over at step 10 of 12 that had a twentieth of it: linear, to zero at the end.
    assert by_step(again, "a", "learning_rate")[12] == pytest.approx(0.001 / (12 - 0.6), rel=1e-3)


def test_one_bit_is_noticed_and_an_older_checkpoint_taken(again, whole):
    flip(again.folder / "a/checkpoints/iter_0000008")
    # On two ranks only one meets it, and both take the other.
    done = again.train("a", DP="2", **SAVED)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("checkpoint skipped: a/checkpoints/iter_0000008") == 1
    assert "resume   from a/checkpoints/iter_0000004, iteration 4\n" in done.stderr
    assert again.losses("a") == pytest.approx(whole.losses("a"), rel=1e-5)


def test_a_run_never_starts_over_because_its_checkpoints_are_damaged(again):
    flip(again.folder / "a/checkpoints/iter_0000008")
    chosen = again.train("a", CKPT_STEP="8", **SAVED)
    assert chosen.returncode == 2
    assert "it is the checkpoint that was requested, and no other replaces it" in chosen.stderr
    flip(again.folder / "a/checkpoints/iter_0000004")
    before = again.rows("a")
    done = again.train("a", DP="2", **SAVED)
    assert done.returncode == 2
    assert "megads: no checkpoint can be read (a/checkpoints/iter_0000008/" in done.stderr
    assert "Traceback" not in done.stderr
    assert again.rows("a") == before
    assert steps(again.folder / "a/checkpoints") == [4, 8]


IMPORTED = ModelConfig(
    **{"num_layers": 1, "hidden_size": 48, "num_heads": 4, "num_kv_heads": 2, "head_dim": 12, "ffn_hidden_size": 96},
    **{"max_positions": 64, "vocab_size": 600, "vocab_multiple": 1, "tied_embeddings": True, "rope_theta": 1e4},
)


def test_an_imported_model_is_trained_without_typing_its_shape(megads):
    tensors, about = parameters_of(IMPORTED), {"max_seq_length": 32}
    with new_writer(megads.folder / "imported", tensors, shape_of(IMPORTED), about) as writer:
        for name, cut in tensors.items():
            spread = np.random.default_rng(1).standard_normal(cut.shape, np.float32)
            writer.add(name, 1 + 0 * spread if "norm" in name else 0.02 * spread)
    settings = {"LOAD": "imported", "USE_CHECKPOINT_ARGS": "1", "NLAYERS": ""}
    shown = megads("config", "--json", **settings)
    rows = json.loads(shown.stdout)
    assert (rows["model.num_layers"]["value"], rows["model.rope_theta"]["value"]) == (1, 1e4)
    assert rows["model.num_layers"]["origin"] == "checkpoint imported/iter_0000000"
    assert "HIDDEN=64 (env HIDDEN) is overridden by 48 (checkpoint imported/iter_0000000)" in shown.stderr
    done = megads.train("r", TP="2", EXIT_INTERVAL="1", **settings)
    assert done.returncode == 75, done.stderr
    assert "vocabulary 600 padded to 600" in done.stderr
    assert "start    from the weights of imported/iter_0000000\n" in done.stderr
    # From now on the shape is that of its own checkpoints.
    shutil.rmtree(megads.folder / "imported")
    rest = megads.train("r", EXIT_INTERVAL="2", **settings)
    assert rest.returncode == 75, rest.stderr
    assert "resume   from r/checkpoints/iter_0000001, iteration 1\n" in rest.stderr
    # Of where it came from it still knows how long its samples may be.
    refused(megads, told=["a context of 32 tokens, and SEQ=64; "], RUN_DIR="r", **{**settings, "SEQ": "64"})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"LOAD": "nowhere"}, "LOAD=nowhere: not found; pass a run, "),
        ({"LOAD": "."}, "LOAD=.: a Hugging Face folder; `megads checkpoint import-hf . DST` makes"),
        ({"FINETUNE": "1"}, "FINETUNE=1 needs the checkpoint whose weights it takes; set LOAD=RUN"),
        ({"CKPT_STEP": "5"}, "runs/llama/checkpoints: no checkpoint of CKPT_STEP=5; there are: none"),
        (
            {"USE_CHECKPOINT_ARGS": "1"},
            "USE_CHECKPOINT_ARGS=1 needs a checkpoint, and there is none in runs/llama/",
        ),
        ({"LOAD": "{a}", "CKPT_STEP": "5"}, "no checkpoint of CKPT_STEP=5; there are: 4, 8 and 12"),
        ({"LOAD": "{a}", "HIDDEN": "128"}, "has hidden_size=64 and head_dim=16, this run asks for 128 and 32; "),
        ({"LOAD": "{a}", "DEMO_VOCAB_SIZE": "513"}, "has vocab_size=512, this run asks for 513; "),
        ({"LOAD": "{a}", "CKPT_DIR": "{a}/checkpoints", "FINETUNE": "1"}, "which is this run's own folder; "),
    ],
)
def test_what_can_not_begin_is_refused_before_anything_is_written(megads, whole, settings, told):
    (megads.folder / "config.json").touch()
    (megads.folder / "model.safetensors").touch()
    refused(megads, told=[told], **{name: text.format(a=whole.folder / "a") for name, text in settings.items()})
