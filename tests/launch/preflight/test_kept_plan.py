"""What a run keeps of its checkpoint when the queue gives it another number of ranks."""

import os
import sys
from pathlib import Path

import pytest

from megads.errors import ConfigError
from megads.launch.plan_run import prepare
from megads.launch.request import TrainRequest
from tests.checkpoint.faked import fake
from tests.data.factory import write_dataset

ROOT = Path(__file__).parents[3]
TINY = {
    **{"MACHINE": "cpu", "MEGADS_DEVICE": "cpu", "NLAYERS": "2", "HIDDEN": "64", "HEADS": "4", "SEQ": "32"},
    **{"NUM_KV_HEAD": "4", "FFN_HIDDEN_SIZE": "128", "TRAIN_ITERS": "12", "TOKENIZER_TYPE": "NullTokenizer"},
    **{"VOCAB_SIZE": "500", "EVAL_INTERVAL": "0", "DTYPE": "fp32"},
}


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Return what plans the run in a folder, in a job with some ranks."""
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path, [40] * 40, vocab=500)
    (tmp_path / "list.txt").write_text(f"1 {next(tmp_path.glob('*.bin')).name} books\n")
    base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}

    def plan(ranks, **env):
        given = {**base, **TINY, "RUN_DIR": "r", "NGPU_PER_HOST": str(ranks), "DATA_FILE_LIST": "list.txt", **env}
        return prepare(TrainRequest(None, (), given, "h", ROOT, sys.executable))

    return plan


def save(tmp_path, run, step=6):
    batch = run.train.global_batch
    fake(tmp_path / "r/checkpoints", step, run, progress={"iteration": step, "consumed_samples": step * batch})


def batches(run):
    return run.train.global_batch, run.train.micro_batch, run.train.grad_acc_steps


def test_a_batch_that_followed_from_the_ranks_stays_on_others(tmp_path, planned):
    """MICRO_BATCH=2 on 4 ranks is a batch of 8 in each of 3 jobs, whatever ranks they get."""
    first = planned(4, MICRO_BATCH="2", GLOBAL_BATCH="8").run
    save(tmp_path, first)
    assert batches(planned(1, MICRO_BATCH="2", GLOBAL_BATCH="0").run) == (8, 2, 4)
    assert batches(planned(2, MICRO_BATCH="2", GLOBAL_BATCH="0").run) == (8, 2, 2)
    # A micro-batch that does not fit gives way: it is no part of the trajectory.
    assert batches(planned(8, MICRO_BATCH="2", GLOBAL_BATCH="0").run) == (8, 1, 1)


def test_a_machine_s_batch_does_not_follow_the_hosts_of_a_later_job(tmp_path, planned):
    save(tmp_path, planned(2, GLOBAL_BATCH="24", MICRO_BATCH="4").run)
    later = planned(1)  # the machine cpu has GLOBAL_BATCH=16 and MICRO_BATCH=8
    assert batches(later.run) == (24, 8, 3)
    assert later.resolved.origins["train.global_batch"].layer == "checkpoint"
    assert not [note for note in later.resolved.notes if "differs from the" in note]


def test_masks_of_dropout_need_the_micro_batch_of_before(tmp_path, planned):
    dropout = {"HIDDEN_DROPOUT": "0.1"}
    save(tmp_path, planned(2, GLOBAL_BATCH="24", MICRO_BATCH="4", **dropout).run)
    assert batches(planned(1, **dropout).run) == (24, 4, 6)
    assert batches(planned(1, **dropout, MICRO_BATCH="12").run) == (24, 12, 2)


def test_a_batch_that_the_user_gives_is_used_and_told(tmp_path, planned):
    save(tmp_path, planned(2, GLOBAL_BATCH="8").run)
    later = planned(1, GLOBAL_BATCH="4")
    assert later.run.train.global_batch == 4
    assert [note for note in later.resolved.notes if note.startswith("GLOBAL_BATCH=4 differs from the 6 steps so far")]


def test_an_accumulation_that_would_change_the_batch_is_refused_with_what_keeps_it(tmp_path, planned):
    save(tmp_path, planned(4, GRAD_ACC_STEPS="2", MICRO_BATCH="1", GLOBAL_BATCH="0").run)
    assert batches(planned(4, GRAD_ACC_STEPS="2", MICRO_BATCH="1").run) == (8, 1, 2)
    with pytest.raises(ConfigError) as refused:
        planned(2, GRAD_ACC_STEPS="2", MICRO_BATCH="1")
    assert str(refused.value) == (
        "GRAD_ACC_STEPS=2 (env GRAD_ACC_STEPS) x MICRO_BATCH=1 x DP=2 is a global batch of 4, the run so far has 8 "
        "(checkpoint r/checkpoints/iter_0000006); unset GRAD_ACC_STEPS or use GRAD_ACC_STEPS=4 or GLOBAL_BATCH=8 to "
        "keep it, GLOBAL_BATCH=4 without GRAD_ACC_STEPS to change it"
    )
    assert batches(planned(2, MICRO_BATCH="1").run) == (8, 1, 4)


def test_ranks_that_cannot_share_the_batch_of_before_are_refused_with_those_that_can(tmp_path, planned):
    save(tmp_path, planned(4, GLOBAL_BATCH="8").run)
    with pytest.raises(ConfigError, match=r"GLOBAL_BATCH=8 \(checkpoint .*\) is not .* or a job of 1, 2 or 4 ranks$"):
        planned(3)


def test_the_planned_length_is_kept(tmp_path, planned):
    save(tmp_path, planned(1, GLOBAL_BATCH="8", PLANNED_ITERS="40").run)
    later = planned(1, GLOBAL_BATCH="8", TRAIN_ITERS="20").run.train
    assert (later.planned_iters, later.planned_samples, later.train_iters) == (40, 320, 20)
    # With another batch the plan has as many samples.
    other = planned(1, GLOBAL_BATCH="12", TRAIN_ITERS="20").run.train
    assert (other.planned_samples, other.planned_iters) == (320, 26)
    # Beyond its plan a run has a length of its own, which the ranks report.
    assert planned(1, GLOBAL_BATCH="8", TRAIN_ITERS="41").run.train.planned_samples == 0
    assert planned(1, GLOBAL_BATCH="8", PLANNED_ITERS="50").run.train.planned_samples == 400


def test_a_growing_order_is_kept(tmp_path, planned):
    save(tmp_path, planned(1, SAMPLE_ORDER="growing").run)
    later = planned(1, TRAIN_ITERS="24").run.data
    assert (later.sample_order, later.blend_in_corpus, later.shuffle_in_corpus) == ("growing", True, False)
    assert planned(1, SAMPLE_ORDER="planned").run.data.shuffle_in_corpus


def test_a_run_of_its_own_takes_nothing_of_the_checkpoint_it_loads(tmp_path, planned):
    save(tmp_path, planned(4, GLOBAL_BATCH="8", PLANNED_ITERS="40").run)
    other = planned(2, RUN_DIR="other", LOAD="r", MICRO_BATCH="1", GRAD_ACC_STEPS="1").run.train
    assert (other.global_batch, other.planned_samples) == (2, 0)
