"""A run that is stopped continues as if it had not been, bit for bit."""

import json
import os
import re
import signal
import time

import pytest

from megads.launch.supervise.processes import children
from tests.data.factory import write_dataset, write_list

SAME = ("iteration", "consumed_samples", "consumed_tokens", "lm_loss", "learning_rate", "grad_norm", "loss_scale",
        "skipped_iterations", "nan_iterations", "valid_loss", "valid_ppl")  # fmt: skip
DROPOUT = {"HIDDEN_DROPOUT": "0.1", "ATTENTION_DROPOUT": "0.1"}
RUNS = [
    pytest.param({"ZERO_STAGE": "0"}, id="one-rank-zero0"),
    pytest.param({"DP": "2", **DROPOUT}, id="dp2-dropout"),
    pytest.param({"TP": "2", "DTYPE": "bf16", **DROPOUT}, id="tp2-bf16-dropout"),
    pytest.param({"ENGINE": "native", "DP": "2", "ZERO_STAGE": "3", "DTYPE": "bf16", **DROPOUT}, id="native-zero3"),
]


def numbers(rows):
    return [{key: row[key] for key in SAME if key in row} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("layout", RUNS)
def test_stop_and_resume_is_bitwise(megads, layout):
    whole = megads.train("whole", **layout)
    assert whole.returncode == 0, whole.stderr
    stopped = megads.train("parts", EXIT_INTERVAL="5", **layout)
    assert stopped.returncode == 75, stopped.stderr
    assert json.loads((megads.folder / "parts/outcome.json").read_text())["iteration"] == 5
    assert "stopped  5 of 12 iterations" in stopped.stderr
    rest = megads.train("parts", **layout)
    assert rest.returncode == 0, rest.stderr
    assert "resume   from parts/checkpoints/iter_0000005, iteration 5" in rest.stderr
    assert numbers(megads.rows("parts")) == numbers(megads.rows("whole"))


def wait_for_step(process, folder, step, seconds=120):
    """Wait until the run has logged ``step``."""
    deadline = time.time() + seconds
    path = folder / "metrics.jsonl"
    while time.time() < deadline and process.poll() is None:
        if path.is_file() and f'"iteration": {step},' in path.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"no step {step}: {process.communicate()[1] if process.poll() is not None else 'timed out'}")


@pytest.mark.parametrize(
    ("layout", "number"),
    [
        ({"TP": "1"}, signal.SIGUSR1),
        ({"TP": "2"}, signal.SIGUSR1),
        ({"TP": "1"}, signal.SIGINT),
        ({"TP": "2"}, signal.SIGINT),
        ({"TP": "1"}, signal.SIGHUP),
        ({"TP": "2", "ENGINE": "native"}, signal.SIGUSR1),
    ],
)
def test_a_signal_stops_at_the_next_step_with_a_checkpoint(megads, layout, number):
    process = megads.start("train", RUN_DIR="r", TRAIN_ITERS="4000", EVAL_INTERVAL="0", **layout)
    wait_for_step(process, megads.folder / "r", 3)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    iteration = json.loads((megads.folder / "r/outcome.json").read_text())["iteration"]
    assert 3 <= iteration < 4000
    assert [p.name for p in (megads.folder / "r/checkpoints").iterdir()] == [f"iter_{iteration:07d}"]
    assert re.search(r"resume   .*RUN_DIR=r.* megads train", err)
    if number == signal.SIGINT:
        assert err.count("megads: stopping after this step and saving; press Ctrl-C again to abort\n") == 1


@pytest.mark.parametrize("layout", [{"TP": "1"}, {"TP": "2"}, {"DP": "2", "ENGINE": "native"}])
def test_a_scheduler_that_ends_every_process_of_the_job_loses_nothing(megads, layout):
    process = megads.start("train", RUN_DIR="r", TRAIN_ITERS="4000", EVAL_INTERVAL="0", **layout)
    wait_for_step(process, megads.folder / "r", 3)
    for pid in [process.pid, *below(process.pid)]:
        os.kill(pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    iteration = json.loads((megads.folder / "r/outcome.json").read_text())["iteration"]
    assert [p.name for p in (megads.folder / "r/checkpoints").iterdir()] == [f"iter_{iteration:07d}"]


def test_megads_stop_ends_a_run(megads):
    process = megads.start("train", RUN_DIR="r", TRAIN_ITERS="4000", EVAL_INTERVAL="0", TP="2")
    wait_for_step(process, megads.folder / "r", 3)
    assert megads("stop", "r").returncode == 0
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    late = megads("stop", "r")
    assert late.returncode == 2
    assert late.stderr == "megads: r: its run is not running; nothing to stop\n"
    again = megads.train("r", TRAIN_ITERS="4000", EXIT_INTERVAL="1", EVAL_INTERVAL="0", TP="2")
    assert again.returncode == 75, again.stderr
    assert "resume   from" in again.stderr


def below(launcher):
    """Return the process ids of everything below a launcher."""
    found = children(launcher)
    for pid in found:
        found += children(pid)
    return found


def test_another_model_in_the_folder_is_refused(megads):
    assert megads.train("r", EXIT_INTERVAL="1").returncode == 75
    other = megads.train("r", NLAYERS="3")
    assert other.returncode == 2
    assert "num_layers=2, this run asks for 3" in other.stderr
    assert "Traceback" not in other.stderr
    assert other.stderr.count("megads: ") == 1


def test_a_damaged_newest_checkpoint_falls_back_to_the_older_one_and_says_so(megads):
    assert megads.train("r", EXIT_INTERVAL="3", SAVE_INTERVAL="1").returncode == 75
    shard = megads.folder / "r/checkpoints/iter_0000003/rank-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    rest = megads.train("r")
    assert rest.returncode == 0, rest.stderr
    assert "checkpoint skipped: " in rest.stderr
    assert "resume   from r/checkpoints/iter_0000002" in rest.stderr


def test_a_list_that_was_edited_meanwhile_is_told(megads):
    for number, name in enumerate("ab"):
        write_dataset(megads.folder, [200] * 20, name=name, seed=number)
    data = {"DATA_FILE_LIST": "list", "TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "100", "EVAL_INTERVAL": "0"}
    for weight, told in (("1", False), ("1", False), ("9", True)):
        write_list(megads.folder / "list", "1 a x", f"{weight} b y")
        done = megads.train("r", EXIT_INTERVAL="2", TRAIN_ITERS="6", **data)
        assert done.returncode in (0, 75), done.stderr
        assert ("had other data: a weight, corpus, file or size has changed since" in done.stderr) == told


def test_the_layout_can_change_on_resume(megads):
    assert megads.train("whole").returncode == 0
    assert megads.train("parts", DP="2", EXIT_INTERVAL="3", ZERO_STAGE="2").returncode == 75
    assert megads.train("parts", TP="2", EXIT_INTERVAL="6", ZERO_STAGE="0").returncode == 75
    rest = megads.train("parts", PP="2", ZERO_STAGE="1")
    assert rest.returncode == 0, rest.stderr
    assert megads.losses("parts") == pytest.approx(megads.losses("whole"), rel=1e-5)
