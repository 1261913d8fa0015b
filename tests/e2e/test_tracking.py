"""A real run with every tracker, is stopped and continues; and keys that are found nowhere."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from megads.monitor.metrics import read_metrics
from tests.monitor.trackers.test_tensorboard import points
from tests.monitor.trackers.test_wandb import history, merged

SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
}
TRACKED = {"TENSORBOARD": "1", "METRICS_CSV": "1", "WANDB_MODE": "offline", "SAVE_INTERVAL": "4"}
MORE = {"LOG_NUM_ZEROS_IN_GRAD": "1", "LOG_PARAMS_NORM": "1"}
TAGS = {
    "lm loss": "lm_loss",
    "grad-norm": "grad_norm",
    "learning-rate": "learning_rate",
    "num-zeros": "num_zeros",
    "params-norm": "params_norm",
}


@pytest.mark.slow
def test_every_tracker_holds_the_rows_of_a_run_that_was_stopped_and_nobody_a_key(megads):
    for package in ("tensorboard", "wandb"):
        pytest.importorskip(package)
    stopped = megads.train("run", **TRACKED, **MORE, **SECRETS, EXIT_INTERVAL="7")
    assert stopped.returncode == 75, stopped.stderr
    # It stops with a checkpoint and resumes from there.
    folder = megads.folder / "run"
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["iteration"]
    assert last == 7
    done = megads.train("run", **TRACKED, **MORE, **SECRETS)
    assert done.returncode == 0, done.stderr

    rows = read_metrics(folder / "metrics.jsonl")
    steps = [row for row in rows if "lm_loss" in row]
    assert [row["iteration"] for row in steps] == list(range(1, 13))
    found = points(folder / "tensorboard")
    for tag, key in TAGS.items():
        assert found[tag] == [(row["iteration"], float(np.float32(row[key]))) for row in steps]
        assert [step for step, _ in found[f"{tag} vs samples"]] == [row["consumed_samples"] for row in steps]
    valid = [(row["iteration"], float(np.float32(row["valid_loss"]))) for row in rows if "valid_loss" in row]
    assert found["lm loss validation"] == valid

    line = f" | num zeros: {steps[-1]['num_zeros']:.1f} | params norm: {steps[-1]['params_norm']:.3f} | number of sk"
    assert line in (folder / "log/run.log").read_text()

    with open(folder / "metrics.csv", newline="") as file:
        table = [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]
    wanted = [{k: str(v) for k, v in row.items() if v is not None} for row in rows]
    assert table == wanted

    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len({path.name for path in files}) == 1
    kept = [{k: v for k, v in row.items() if v is not None} for path in files for row in history(path)]
    assert [row for row in kept if "lm_loss" in row] == [row for row in merged(rows) if "lm_loss" in row]

    said = stopped.stdout + stopped.stderr + done.stdout + done.stderr
    for name, secret in SECRETS.items():
        assert secret not in said, name
        assert not [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()], name


@pytest.mark.parametrize(
    ("words", "settings", "told"),
    [
        (("--set", "wandb.api_key=opensesame"), {}, "--set wandb.api_key=*** no setting named"),
        ((), {"DATA_PATH": "https://me:opensesame@host/x"}, "https://***@host/x"),
        (("--wandb-project", "opensesame123"), {"MY_TOKEN": "opensesame123"}, "WANDB_PROJECT=*** holds a key or passw"),
    ],
)
def test_a_key_in_the_command_is_refused_and_not_repeated(megads, words, settings, told):
    for more in ((), ("--dry-run",)):
        refused = megads.train("run", *words, *more, **settings)
        assert refused.returncode == 2
        assert told in refused.stderr
        assert "opensesame" not in refused.stdout + refused.stderr
    assert not (megads.folder / "run").exists()


def test_doctor_and_a_dry_run_show_no_key(megads):
    for words in (("train", "--dry-run"), ("config",)):
        said = megads(*words, **SECRETS, WANDB_MODE="offline")
        assert said.returncode == 0, said.stderr
        assert not [name for name, secret in SECRETS.items() if secret in said.stdout + said.stderr]


def test_the_dry_run_of_a_job_shows_no_key_that_it_is_given(megads):
    words = ("--submit", "--dry-run", "--walltime", "1:00:00", "--nodes", "1", "--account", "a", "--env", "HF_TOKEN")
    said = megads("train", *words, **SECRETS, MACHINE="polaris", GLOBAL_BATCH="16")
    assert "export HF_TOKEN=***" in said.stdout, said.stderr
    assert SECRETS["HF_TOKEN"] not in said.stdout + said.stderr
