"""The learning-rate finder as a user runs it, and the training run of the same name after it."""

import csv
import json

import pytest

from megads.storage.lease import holder_of


@pytest.mark.parametrize("settings", [{}, {"TP": "2", "CKPT_DIR": "saved"}], ids=["one-rank", "two-ranks"])
def test_a_sweep_leaves_a_table_a_picture_and_no_run(megads, settings):
    found = megads.train("r", LR_FINDER="1", LR_FINDER_ITERS="10", **settings)
    assert found.returncode == 0, found.stderr
    assert "suggest  nothing: not enough steps: each rate is 4.6 times the one before" in found.stderr
    rows = list(csv.DictReader((megads.folder / "r/lr_finder.csv").read_text().splitlines()))
    assert float(rows[0]["learning_rate"]) == 1e-6
    assert 5 <= len(rows) <= 10
    assert (megads.folder / "r/lr_finder.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in (megads.folder / "r").iterdir()} == {"lr_finder", "lr_finder.csv", "lr_finder.png"}
    # The next job need not wait until the lease of this one has run out.
    assert holder_of(megads.folder / "r/lr_finder").is_over
    assert not list(megads.folder.rglob("iter_*"))
    assert not list(megads.folder.rglob("metrics.jsonl"))
    # The training run of that name begins as if nothing had been there.
    trained = megads.train("r", TRAIN_ITERS="2", **settings)
    assert trained.returncode == 0, trained.stderr
    assert "random weights" in trained.stderr
    steps = [row for row in megads.rows("r") if "lm_loss" in row]
    assert [row["iteration"] for row in steps] == [1, 2]
    assert json.loads((megads.folder / "r/outcome.json").read_text())["iteration"] == 2
    # And a sweep does not touch it, though it is complete.
    again = megads.train("r", LR_FINDER="1", LR_FINDER_ITERS="3", TRAIN_ITERS="4", **settings)
    assert again.returncode == 0, again.stderr
    assert [row["iteration"] for row in megads.rows("r") if "lm_loss" in row] == [1, 2]
    assert json.loads((megads.folder / "r/outcome.json").read_text())["iteration"] == 2
    assert "init     random weights" in again.stderr
