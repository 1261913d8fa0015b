"""The main job: a run from one command, its files, its numbers, its layouts."""

import json
import math
import os

import pytest

LAYOUTS = [
    pytest.param({"TP": "1"}, id="tp1"),
    pytest.param({"TP": "2"}, id="tp2"),
    pytest.param({"TP": "4"}, id="tp4"),
    pytest.param({"DP": "2"}, id="dp2"),
    pytest.param({"TP": "2", "DP": "2"}, id="tp2dp2"),
    pytest.param({"TP": "2", "ZERO_STAGE": "0"}, id="tp2-zero0"),
    pytest.param({"DP": "2", "ZERO_STAGE": "0"}, id="dp2-zero0"),
]
FIELDS = {
    "iteration",
    "consumed_samples",
    "consumed_tokens",
    "lm_loss",
    "learning_rate",
    "grad_norm",
    "loss_scale",
    *(f"time/{part}_s" for part in ("data", "forward", "backward", "communication", "optimizer", "other", "save")),
    "data_wait_s",
    "data_wait_share",
    "skipped_iterations",
    "nan_iterations",
    "rejected_iterations",
    "rollbacks",
    "weight_decay",
    "global_batch_size",
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_device",
    "tflops_per_device",
    "mfu",
    "mfu_full",
    "mfu_causal",
    "hardware_tflops_per_device",
    "hfu",
    "memory_bytes",
    "predicted_memory_bytes",
}


@pytest.fixture(scope="session")
def reference(tmp_path_factory, cache):
    """One rank, ZeRO 0, fp32, 20 steps: the numbers every layout must give."""
    from tests.e2e.conftest import Command

    command = Command(tmp_path_factory.mktemp("reference"), cache)
    done = command.train("r", ZERO_STAGE="0", TRAIN_ITERS="20", INIT_METHOD_STD="0.02")
    assert done.returncode == 0, done.stderr
    return command


def test_a_run_trains_and_says_what_it_did(reference):
    folder = reference.folder / "r"
    rows = reference.rows("r")
    steps = [row for row in rows if "lm_loss" in row]
    valid = [row for row in rows if "valid_loss" in row]
    assert [row["iteration"] for row in steps] == list(range(1, 21))
    assert set(steps[0]) == FIELDS
    assert [row["iteration"] for row in valid] == [0, 6, 12, 18, 20]
    assert valid[0]["valid_loss"] == pytest.approx(math.log(512), abs=0.05)
    assert valid[-1]["valid_loss"] < valid[0]["valid_loss"] - 0.3
    assert valid[0]["valid_ppl"] == pytest.approx(math.exp(valid[0]["valid_loss"]))
    assert steps[0]["consumed_tokens"] == 8 * 32
    assert steps[0]["mfu"] is None
    outcome = json.loads((folder / "outcome.json").read_text())
    assert (outcome["exit_code"], outcome["message"], outcome["iteration"], outcome["kind"]) == (0, "done", 20, "done")
    assert (folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert not (folder / "ds_config.json").exists()  # DeepSpeed is not the engine
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["iter_0000020"]


def test_a_run_of_the_native_engine_imports_no_deepspeed(megads):
    planted = megads.folder / "planted"
    planted.mkdir()
    (planted / "deepspeed.py").write_text("raise ImportError('deepspeed is imported')\n")
    path = f"{planted}:{os.environ.get('PYTHONPATH', '')}"
    done = megads.train("r", TRAIN_ITERS="2", TP="1", ENGINE="native", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    assert "engine   native" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_loss_does_not_depend_on_the_layout(reference, megads, layout):
    done = megads.train("r", TRAIN_ITERS="20", INIT_METHOD_STD="0.02", **layout)
    assert done.returncode == 0, done.stderr
    assert ("megads.launch.launchers.local" in done.stderr) is (layout != {"TP": "1"})
    assert megads.losses("r") == pytest.approx(reference.losses("r"), rel=1e-5)
    norms = [[row["grad_norm"] for row in c.rows("r") if "grad_norm" in row] for c in (megads, reference)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    valid = [[row["valid_loss"] for row in c.rows("r") if "valid_loss" in row] for c in (megads, reference)]
    assert valid[0] == pytest.approx(valid[1], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"TP": "2"}, {"DP": "2", "ZERO_STAGE": "0"}])
def test_bf16_stays_near_fp32(reference, megads, layout):
    done = megads.train("r", TRAIN_ITERS="20", DTYPE="bf16", INIT_METHOD_STD="0.02", **layout)
    assert done.returncode == 0, done.stderr
    assert megads.losses("r") == pytest.approx(reference.losses("r"), abs=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["gpt-345M", "7B", "2B", "gpt3-175B"])
def test_presets_train_at_the_width_of_this_machine(megads, preset):
    done = megads.train("r", "--preset", preset, TRAIN_ITERS="2", EVAL_ITERS="1")
    assert done.returncode == 0, done.stderr
    assert len(megads.losses("r")) == 2


def test_the_screen_tells_what_a_person_wants_to_know(megads):
    done = megads.train("r", TP="2", NLAYERS="3", TRAIN_ITERS="4")
    assert done.returncode == 0, done.stderr
    for wanted in (
        "layout   2 ranks on 1 host: TP=2 PP=1 SP=1 DP=1",
        "3 layers",
        "batch    8 samples = micro 4 x accumulation 2 x DP 1",
        "memory   about",
        "mfu      unknown; set MEGADS_PEAK_TFLOPS",
        "step 1/4 | loss ",
        "| ETA ",
        "validation loss ",
        "saved r/checkpoints/iter_0000004",
        "done     4 of 4 iterations",
        "loss     training ",
        "folder   r ",
        "longer   TRAIN_ITERS=8 MACHINE=cpu RUN_DIR=r ",
        "megads.launch.launchers.local",
    ):
        assert wanted in done.stderr, f"{wanted!r} is not in:\n{done.stderr}"
    assert "Warning" not in done.stderr
    log = (megads.folder / "r/log/run.log").read_text()
    for wanted in (
        "layout   2 ranks on 1 host",
        "megads.launch.launchers.local",
        "step 4/4 | loss ",
        "done     4 of 4",
    ):
        assert wanted in log


def test_the_same_command_again_starts_the_next_run(megads):
    first = megads("train", "--preset", "tiny", TRAIN_ITERS="2")
    assert first.returncode == 0, first.stderr
    second = megads("train", "--preset", "tiny", TRAIN_ITERS="2")
    assert second.returncode == 0, second.stderr
    assert "runs/tiny is complete; this run is runs/tiny-2" in second.stderr
    assert megads.losses("runs/tiny") == megads.losses("runs/tiny-2")


def test_a_complete_run_that_was_named_is_left_alone(megads):
    assert megads.train("r", TRAIN_ITERS="2").returncode == 0
    again = megads.train("r", TRAIN_ITERS="2")
    assert again.returncode == 0
    assert "r is complete (2 iterations)" in again.stderr
    assert len(megads.losses("r")) == 2
