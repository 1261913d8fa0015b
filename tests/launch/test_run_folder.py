import json
import os

import pytest

from megads.config.run_folder import save_config
from megads.config.schema import ModelConfig, RunConfig, TrainConfig
from megads.config.settings.checkpoint import CheckpointConfig
from megads.errors import LaunchError
from megads.launch.claims import claim
from megads.launch.run_folder import choose_folder, request_stop


def run(iters=100, **changes):
    return RunConfig(name="7B", train=TrainConfig(train_iters=iters), **changes)


def finish(path, iteration, exit_code=0):
    path.mkdir(parents=True)
    (path / "outcome.json").write_text(json.dumps({"exit_code": exit_code, "message": "", "iteration": iteration}))


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_new_run_has_the_plain_name():
    assert str(choose_folder(run(), named=False, in_job=False).path) == "runs/7B"


def test_a_run_of_no_steps_has_a_folder():
    assert str(choose_folder(run(0), named=False, in_job=False).path) == "runs/7B"


def test_a_stopped_run_is_resumed(tmp_path):
    finish(tmp_path / "runs/7B", 40, exit_code=75)
    assert str(choose_folder(run(), named=False, in_job=False).path) == "runs/7B"


def test_a_complete_run_is_not_trained_on_top_of(tmp_path):
    finish(tmp_path / "runs/7B", 100)
    folder = choose_folder(run(), named=False, in_job=False)
    assert str(folder.path) == "runs/7B-2"
    assert "runs/7B is complete" in folder.note


def test_fresh_takes_the_next_free_name_and_leaves_what_is_there(tmp_path):
    assert str(choose_folder(run(), named=False, in_job=False, fresh=True).path) == "runs/7B"
    finish(tmp_path / "runs/7B", 40, exit_code=75)
    (tmp_path / "runs/7B-2/log").mkdir(parents=True)
    (tmp_path / "runs/7B-3").mkdir()
    found = choose_folder(run(), named=False, in_job=False, fresh=True)
    assert (str(found.path), found.complete, found.named) == ("runs/7B-3", False, False)
    assert found.note == "runs/7B is not empty; this run is runs/7B-3 (RUN_DIR=runs/7B-3 resumes it)"
    # Without the option the same name means the run that is not finished.
    assert str(choose_folder(run(), named=False, in_job=False).path) == "runs/7B"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "--fresh: runs/7B is not empty; use RUN_NAME=7B-2"),
        ({"dir": "runs/7B"}, "--fresh: runs/7B is not empty; use RUN_DIR=runs/7B-2"),
        (
            {"checkpoint": CheckpointConfig(dir="runs/7B")},
            "--fresh: CKPT_DIR=runs/7B is not empty; use CKPT_DIR=runs/7B-2",
        ),
    ],
)
def test_fresh_in_a_folder_that_the_user_named_says_which_is_free(tmp_path, changes, told):
    finish(tmp_path / "runs/7B", 40, exit_code=75)
    with pytest.raises(LaunchError) as refused:
        choose_folder(run(**changes), named=True, in_job=False, fresh=True)
    assert str(refused.value) == told
    if "dir" in changes:
        free = choose_folder(run(dir="runs/7B-2"), named=True, in_job=False, fresh=True)
        assert str(free.path) == "runs/7B-2"


def test_fresh_in_a_batch_job_is_refused_since_a_requeue_would_begin_again():
    with pytest.raises(LaunchError, match="whenever the job is restarted; set RUN_NAME instead"):
        choose_folder(run(), named=False, in_job=True, fresh=True)


def test_a_longer_training_extends_the_complete_run(tmp_path):
    finish(tmp_path / "runs/7B", 100)
    assert str(choose_folder(run(200), named=False, in_job=False).path) == "runs/7B"


def test_a_try_on_a_laptop_does_not_stand_in_the_way_of_the_presets_own_model(tmp_path):
    """The small model of machine cpu has runs/7B; the same name on another machine takes the next folder."""
    small = run(machine="cpu", model=ModelConfig(hidden_size=128, num_layers=2))
    (tmp_path / "runs/7B/checkpoints/iter_0000050").mkdir(parents=True)
    save_config(small, {}, tmp_path / "runs/7B/config.yaml")
    large = small.model_copy(update={"machine": "polaris", "model": ModelConfig(hidden_size=4096, num_layers=2)})
    found = choose_folder(large, named=False, in_job=False)
    assert str(found.path) == "runs/7B-2"
    assert found.note == "runs/7B has another machine's model; this run is runs/7B-2"
    assert str(choose_folder(large, named=True, in_job=False).path) == "runs/7B"  # refused where it is resumed
    assert str(choose_folder(small, named=False, in_job=False).path) == "runs/7B"
    same = small.model_copy(update={"machine": "polaris"})
    assert str(choose_folder(same, named=False, in_job=False).path) == "runs/7B"


@pytest.mark.parametrize(("named", "in_job"), [(True, False), (False, True)])
def test_named_runs_and_batch_jobs_never_start_over(tmp_path, named, in_job):
    finish(tmp_path / "runs/7B", 100)
    folder = choose_folder(run(), named=named, in_job=in_job)
    assert str(folder.path) == "runs/7B"
    assert folder.complete


@pytest.mark.parametrize(("named", "in_job"), [(True, False), (False, True), (False, False)])
def test_going_back_in_a_complete_run_is_something_to_do(tmp_path, named, in_job):
    finish(tmp_path / "runs/7B", 100)
    (tmp_path / "runs/7B/checkpoints/iter_0000050").mkdir(parents=True)
    folder = choose_folder(run(checkpoint=CheckpointConfig(step=50)), named=named, in_job=in_job)
    assert (str(folder.path), folder.complete, folder.note) == ("runs/7B", False, "")
    # Nothing to do is left at its end, or beyond.
    assert choose_folder(run(checkpoint=CheckpointConfig(step=100)), named=named, in_job=in_job).complete


def test_one_of_its_own_checkpoints_as_load_goes_back_too(tmp_path):
    finish(tmp_path / "runs/7B", 100)
    load = "runs/7B/checkpoints/iter_0000050"
    assert not choose_folder(run(checkpoint=CheckpointConfig(load=load)), named=True, in_job=False).complete
    other = CheckpointConfig(load="runs/x/checkpoints/iter_0000050", step=50)
    assert choose_folder(run(checkpoint=other), named=True, in_job=False).complete


def test_without_a_name_the_newest_run_goes_back(tmp_path):
    back = run(checkpoint=CheckpointConfig(step=50))
    for name in ("7B", "7B-2"):
        finish(tmp_path / "runs" / name, 100)
    folder = choose_folder(back, named=False, in_job=False)
    assert (str(folder.path), folder.named) == ("runs/7B-2", False)
    assert folder.note == "this run is runs/7B-2, the newest of its name"
    (tmp_path / "runs/7B-3/checkpoints/iter_0000050").mkdir(parents=True)
    assert str(choose_folder(back, named=False, in_job=False).path) == "runs/7B-3"


def evaluation(**changes):
    return RunConfig(name="7B", train=TrainConfig(train_iters=1, evaluate_only=True), **changes)


@pytest.mark.parametrize(("named", "in_job"), [(True, False), (False, True), (False, False)])
def test_a_complete_run_can_be_evaluated(tmp_path, named, in_job):
    finish(tmp_path / "runs/7B", 100)
    (tmp_path / "runs/7B/checkpoints/iter_0000100").mkdir(parents=True)
    folder = choose_folder(evaluation(), named=named, in_job=in_job)
    assert (str(folder.path), folder.complete, folder.note) == ("runs/7B", False, "")


def test_without_a_name_the_newest_run_is_evaluated(tmp_path):
    for name in ("7B", "7B-2"):
        finish(tmp_path / "runs" / name, 100)
        (tmp_path / "runs" / name / "checkpoints/iter_0000100").mkdir(parents=True)
    (tmp_path / "runs/7B-3").mkdir()  # nothing to evaluate
    folder = choose_folder(evaluation(), named=False, in_job=False)
    assert (str(folder.path), folder.note) == ("runs/7B-2", "evaluates runs/7B-2, the newest run of its name")


def test_the_evaluation_of_another_run_does_not_happen_in_one_that_has_its_own_checkpoints(tmp_path):
    (tmp_path / "runs/7B/checkpoints/iter_0000050").mkdir(parents=True)
    folder = choose_folder(evaluation(checkpoint=CheckpointConfig(load="x")), named=False, in_job=False)
    assert (str(folder.path), folder.note) == ("runs/7B-2", "runs/7B is not empty; this evaluation is runs/7B-2")


def test_the_model_of_one_folder_is_not_trained_in_another(tmp_path):
    asked = run(checkpoint=CheckpointConfig(use_args=True))
    assert str(choose_folder(asked, named=False, in_job=False).path) == "runs/7B"
    finish(tmp_path / "runs/7B", 100)
    told = "needs a checkpoint, but runs/7B is complete; this run is runs/7B-2 .*; set LOAD=RUN, RUN_NAME or RUN_DIR$"
    with pytest.raises(LaunchError, match=told):
        choose_folder(asked, named=False, in_job=False)
    assert choose_folder(asked, named=True, in_job=False).complete
    # Then the model is that of LOAD, or that of the run in the other folder.
    loads = run(checkpoint=CheckpointConfig(use_args=True, load="other"))
    assert str(choose_folder(loads, named=False, in_job=False).path) == "runs/7B-2"
    (tmp_path / "runs/7B-2/checkpoints/iter_0000050").mkdir(parents=True)
    assert str(choose_folder(asked, named=False, in_job=False).path) == "runs/7B-2"


def test_run_dir_is_exact(tmp_path):
    assert choose_folder(run(dir=str(tmp_path / "x/y")), named=True, in_job=False).path == tmp_path / "x/y"


def test_stop_wants_a_run(tmp_path):
    with pytest.raises(LaunchError, match="no run here"):
        request_stop(tmp_path)
    with claim(tmp_path / "r"):
        (tmp_path / "r/config.yaml").write_text("")
        request_stop(tmp_path / "r")
        assert (tmp_path / "r/stop").exists()
    with pytest.raises(LaunchError, match="its run is not running"):
        request_stop(tmp_path / "r")


def test_where_locks_tell_nothing_the_heartbeat_does(tmp_path):
    (tmp_path / "config.yaml").write_text("")
    (tmp_path / "heartbeat.json").write_text("{}")
    request_stop(tmp_path)
    assert (tmp_path / "stop").exists()
    os.utime(tmp_path / "heartbeat.json", (0, 0))
    with pytest.raises(LaunchError, match="its run is not running"):
        request_stop(tmp_path)
