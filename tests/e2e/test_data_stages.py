"""Data in stages, by the command: a resume in the middle of a stage is bitwise, in every layout it is the same run."""

import pytest

from tests.data.factory import write_dataset, write_list
from tests.e2e.test_resume import numbers

STAGES = """stages:
- {name: short, iters: 3, seq: 16, lr: {warmup: 1 iters, peak: 1e-2}}
- {name: code, iters: 4, seq: 32, mixture: {b: 3, a: 1}}
- {name: large, iters: 3, global_batch: 16, data: [1 b], lr: {to: 0, shape: linear}}
"""
ENV = {
    **{"SEQ": "", "TRAIN_ITERS": "", "TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "256"},
    **{"DATA_STAGES": "stages.yaml", "DATA_FILE_LIST": "list.txt", "EVAL_INTERVAL": "5"},
    **{"HIDDEN_DROPOUT": "0.1", "ATTENTION_DROPOUT": "0.1"},
}


@pytest.fixture
def staged(megads):
    for name in ("a", "b"):
        write_dataset(megads.folder, [50] * 40, 256, name=name, seed=ord(name))
    write_list(megads.folder / "list.txt", "1 a a", "1 b b")
    (megads.folder / "stages.yaml").write_text(STAGES)
    return megads


@pytest.mark.slow
def test_a_resume_in_the_middle_of_each_stage_is_bitwise(staged):
    whole = staged.train("whole", **ENV)
    assert whole.returncode == 0, whole.stderr
    assert "stage    code (2 of 3) at step 4: 8 samples x 32 tokens, ends at step 7" in whole.stderr
    for interval, code in (("2", 75), ("5", 75), ("8", 75), ("0", 0)):
        part = staged.train("parts", EXIT_INTERVAL=interval, **ENV)
        assert part.returncode == code, part.stderr
    assert "stage    large (3 of 3) at step 9, 16 samples into it" in part.stderr
    rows = staged.rows("whole")
    assert numbers(staged.rows("parts")) == numbers(rows)
    steps = [row for row in rows if "lm_loss" in row]
    assert [(row["stage"], row["seq_length"], row["global_batch_size"]) for row in steps] == [
        *[(1, 16, 8)] * 3,
        *[(2, 32, 8)] * 4,
        *[(3, 32, 16)] * 3,
    ]
    assert steps[-1]["consumed_tokens"] == 3 * 8 * 16 + 4 * 8 * 32 + 3 * 16 * 32
    assert [row["learning_rate"] for row in steps] == pytest.approx([0, *[0.01] * 7, 0.02 / 3, 0.01 / 3])


@pytest.mark.slow
def test_layouts_and_engines_train_the_same_stages(staged):
    no_dropout = {**ENV, "HIDDEN_DROPOUT": "0", "ATTENTION_DROPOUT": "0", "EVAL_INTERVAL": "0", "MICRO_BATCH": "2"}
    losses = {}
    for name, layout in {
        "one": {},
        "tp-dp": {"TP": "2", "DP": "2", "ZERO_STAGE": "3"},
        "pp-sp": {"PP": "2", "SP": "2"},
        "deepspeed": {"ENGINE": "deepspeed", "DP": "2"},
    }.items():
        found = staged.train(name, **no_dropout, **layout)
        assert found.returncode == 0, found.stderr
        losses[name] = staged.losses(name)
    for name, found in losses.items():
        assert found == pytest.approx(losses["one"], abs=1e-5), name


def test_stages_that_have_begun_keep_their_sizes(staged):
    assert staged.train("run", EXIT_INTERVAL="5", **ENV).returncode == 75
    for old, new, message in (
        ("iters: 3, seq", "iters: 2, seq", "stages.yaml:2: stage short has 2 iterations, and the checkpoint was trai"),
        (
            "iters: 4, seq: 32",
            "iters: 1, seq: 32",
            "stages.yaml:3: stage code ends after 32 samples of the run, and 40",
        ),
        ("mixture: {b", "mixture: {c", "stage code: mixture: no corpus 'c' in its data, which has a and b"),
    ):
        (staged.folder / "stages.yaml").write_text(STAGES.replace(old, new))
        found = staged.train("run", **ENV)
        assert found.returncode == 2
        assert message in found.stderr
        assert len(found.stderr.splitlines()) == 1
    (staged.folder / "stages.yaml").write_text(STAGES.replace("b: 3", "b: 1"))
    dry = staged.train("run", "--dry-run", **ENV)
    assert dry.returncode == 0, dry.stderr
    assert "checkpoint had stage code of mixture b 3, a 1 seed 1000003, this run has mixture b 1, a 1" in dry.stderr
