"""A growing batch, ranges that are skipped and several corpora in real runs, killed and resumed."""

from __future__ import annotations

import os
import signal

import pytest

from megads.data.sources.file_list import Shard
from megads.launch.supervise.processes import children
from tests.data.factory import write_dataset, write_list
from tests.e2e.test_resume import wait_for_step

RUN = {
    "TOKENIZER_TYPE": "NullTokenizer",
    "VOCAB_SIZE": "100",
    "GLOBAL_BATCH": "16",
    "RAMPUP_BATCH_SIZE": "4 4 40",
    "SKIP_TRAIN_ITERATION_RANGE": "5-6 9-9",
    "TRAIN_SAMPLES": "1600",
    "TRAIN_ITERS": "",
    "EVAL_ITERS": "3",
    "EVAL_INTERVAL": "32",
}


@pytest.fixture
def listed(megads):
    """Return the settings of a run on three files of two corpora."""
    prefixes = [write_dataset(megads.folder, [40, 3, 90] * 40, seed=i, name=f"f{i}") for i in range(3)]
    shards = [Shard(1.0 + i, prefix, "ab"[i % 2]) for i, prefix in enumerate(prefixes)]
    path = write_list(megads.folder / "list.txt", *(f"{s.weight} {s.prefix} {s.corpus}" for s in shards))
    return {**RUN, "DATA_FILE_LIST": str(path)}


def told(rows, *keys):
    return [tuple(row.get(key) for key in ("iteration", *keys)) for row in rows if "link" not in row]


def end(process):
    """Kill a run as a node that fails does: every process, at once."""
    for pid in [*children(process.pid), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def test_a_killed_run_reads_on_with_other_ranks_micro_batches_and_readers(megads, listed):
    whole = megads.train("whole", **listed, MICRO_BATCH="4", NUM_WORKERS="2")
    assert whole.returncode == 0, whole.stderr
    assert "ramp-up  from 4 samples by 4 to 16 over 40 samples: 7 iterations" in whole.stderr + whole.stdout
    assert "data     list.txt; 2 prefetch threads per rank" in whole.stderr + whole.stdout
    assert "steps 5-6: 16 samples skipped" in whole.stderr
    process = megads.start(
        "train", RUN_DIR="parts", **{**listed, "DP": "2", "MICRO_BATCH": "1", "NUM_WORKERS": "1", "SAVE_INTERVAL": "4"}
    )
    wait_for_step(process, megads.folder / "parts", 7)  # about a hundred are left
    end(process)
    rest = megads.train("parts", **listed, DP="1", MICRO_BATCH="2", NUM_WORKERS="0", SAVE_INTERVAL="50")
    assert rest.returncode == 0, rest.stderr
    assert "resume   from parts/checkpoints/iter_00000" in rest.stderr
    rows, parts = megads.rows("whole"), megads.rows("parts")
    assert [row["num_ranks"] for row in parts if "link" in row] == [1]  # the row that says that ranks changed
    for key in ("consumed_samples", "global_batch_size", "passed_over_iterations", "learning_rate"):
        assert told(parts, key) == told(rows, key)
    for key in ("lm_loss", "valid_loss", "valid_loss/a", "valid_loss/b"):
        losses = [row[key] for row in rows if key in row]
        assert len(losses) > 2
        assert [row[key] for row in parts if key in row] == pytest.approx(losses, rel=1e-5)
    steps = [row for row in rows if "lm_loss" in row]
    # Steps 5 and 6, of 8, are skipped.
    assert [row["global_batch_size"] for row in steps[:6]] == [4, 4, 4, 4, 12, 16]
    assert [row["iteration"] for row in rows if "passed_over_iterations" in row] == [6, 9]
    assert {row["iteration"] for row in steps} == set(range(1, steps[-1]["iteration"] + 1)) - {5, 6, 9}
    assert 1600 - 16 < steps[-1]["consumed_samples"] <= 1600
    assert all(row["data_wait_s"] >= 0 and 0 <= row["data_wait_share"] <= 1 for row in steps)


def test_a_batch_on_the_way_that_does_not_fit_is_refused_before_the_start(megads):
    wrong = megads.train("r", **RUN, DP="2", MICRO_BATCH="4")
    assert wrong.returncode == 2
    assert "the batch size 4 of the ramp is not a multiple of MICRO_BATCH x DP = 4 x 2 = 8; use MICRO_" in wrong.stderr
    assert wrong.stderr.count("megads: ") == 1
