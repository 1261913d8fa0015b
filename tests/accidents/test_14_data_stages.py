"""Row 14: a change of the mixture, the length of samples or the rate was a new job by hand, from another position.

Users asked for stages with weights, sample length and learning rate in one file, an exact resume in the middle of
one, and sweeps of ratios from a branch point.
"""

import pytest

from tests.data.factory import write_dataset, write_list
from tests.e2e.test_branch import steps
from tests.e2e.test_resume import numbers

STAGES = """stages:
- {name: main, iters: 3, seq: 16, lr: {warmup: 1 iters, peak: 1e-2}}
- {name: long, iters: 4, seq: 32, mixture: {a: 1, b: 3}, lr: {to: 1e-3}}
"""
ENV = {
    **{"SEQ": "", "TRAIN_ITERS": "", "TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "256", "EVAL_INTERVAL": "0"},
    **{"DATA_FILE_LIST": "list.txt", "DATA_STAGES": "stages.yaml", "SAVE_INTERVAL": "2"},
}
KILLED = """
if "worker" in sys.argv:
    import megads.train.loop as loop
    step = loop.Loop.step
    def killed(self, batches):
        if self.training.progress.iteration == 5:
            os.kill(os.getpid(), 9)
        step(self, batches)
    loop.Loop.step = killed
"""


@pytest.mark.slow
def test_a_killed_run_resumes_inside_a_stage_and_ratios_are_swept_from_there(megads):
    for name in ("a", "b"):
        write_dataset(megads.folder, [50] * 40, 256, name=name, seed=ord(name))
    write_list(megads.folder / "list.txt", "1 a a", "1 b b")
    (megads.folder / "stages.yaml").write_text(STAGES)
    whole = megads.train("whole", **ENV)
    assert whole.returncode == 0, whole.stderr
    killed = megads.train("run", PYTHONPATH=megads.plant(KILLED), **ENV)
    assert killed.returncode == -9, killed.stderr
    resumed = megads.train("run", **ENV)
    assert resumed.returncode == 0, resumed.stderr
    assert "stage    long (2 of 2) at step 5, 8 samples into it" in resumed.stderr
    last = {row["iteration"]: row for row in numbers(steps(megads, "run"))}
    assert list(last.values()) == numbers(steps(megads, "whole"))
    losses = {}
    for share in ("0.1", "0.9"):
        (megads.folder / "sweep.yaml").write_text(
            f"stages:\n- {{name: sweep, iters: 2, mixture: {{a: {share}, b: {1 - float(share):g}}}, lr: {{to: 0}}}}\n"
        )
        found = megads("branch", "whole", "--at", "6", "--name", f"a{share}", **{**ENV, "DATA_STAGES": "sweep.yaml"})
        assert found.returncode == 0, found.stderr
        rows = steps(megads, f"a{share}")
        assert [(row["iteration"], row["stage"], row["seq_length"]) for row in rows] == [(7, 3, 32), (8, 3, 32)]
        losses[share] = [row["lm_loss"] for row in rows]
    assert losses["0.1"] != losses["0.9"]
