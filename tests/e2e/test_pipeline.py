"""Pipeline stages through the real command: stopped and resumed, and resumed by other stages."""

import pytest

from tests.e2e.test_resume import DROPOUT, numbers

PIPELINE = {"PP": "2", "NLAYERS": "4"}
CHUNKS = {**PIPELINE, "ENGINE": "native", "VIRTUAL_STAGES": "2"}
ZERO_BUBBLE = {**PIPELINE, "ENGINE": "native", "PIPELINE_SCHEDULE": "zb-h1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param({**PIPELINE, "MODEL_FAMILY": "gpt"}, id="pp2-gpt-dropout"),
        pytest.param({**PIPELINE, "SP": "2", **DROPOUT}, id="pp2-sp2-dropout"),
        pytest.param({**CHUNKS, "MODEL_FAMILY": "gpt"}, id="chunks-gpt-dropout"),
    ],
)
def test_stop_and_resume_is_bitwise(megads, layout):
    whole = megads.train("whole", **layout)
    assert whole.returncode == 0, whole.stderr
    stopped = megads.train("parts", EXIT_INTERVAL="5", **layout)
    assert stopped.returncode == 75, stopped.stderr
    rest = megads.train("parts", **layout)
    assert rest.returncode == 0, rest.stderr
    assert "resume   from parts/checkpoints/iter_0000005, iteration 5" in rest.stderr
    assert "dropout starts anew" not in rest.stderr
    assert numbers(megads.rows("parts")) == numbers(megads.rows("whole"))


def test_the_stages_can_change_on_resume(megads):
    assert megads.train("whole", NLAYERS="4").returncode == 0
    assert megads.train("parts", EXIT_INTERVAL="5", **PIPELINE).returncode == 75
    rest = megads.train("parts", NLAYERS="4", DP="2", ZERO_STAGE="3")
    assert rest.returncode == 0, rest.stderr
    assert "dropout" not in rest.stderr
    assert megads.losses("parts") == pytest.approx(megads.losses("whole"), rel=1e-5)


def test_with_dropout_other_stages_draw_the_same(megads):
    assert megads.train("r", EXIT_INTERVAL="5", **PIPELINE, **DROPOUT).returncode == 75
    rest = megads.train("r", NLAYERS="4", **DROPOUT)
    assert rest.returncode == 0, rest.stderr
    assert "dropout draws other numbers" not in rest.stderr  # draws do not depend on PP


def test_the_schedule_can_change_on_resume(megads):
    assert megads.train("whole", NLAYERS="4").returncode == 0
    assert megads.train("parts", EXIT_INTERVAL="3", **CHUNKS).returncode == 75
    assert megads.train("parts", EXIT_INTERVAL="6", **ZERO_BUBBLE).returncode == 75
    rest = megads.train("parts", **PIPELINE)
    assert rest.returncode == 0, rest.stderr
    assert megads.losses("parts") == pytest.approx(megads.losses("whole"), rel=1e-5)


PLANTED = """
if RANK == "1":
    import os
    import megads.engine.native.stage as stage
    import megads.train.loop as loop

    step, do = loop.Loop.step, stage._Passes._do

    def failing(self, batches):
        stage.dies = self.training.progress.iteration == 2
        step(self, batches)

    def dying(self, step):
        if getattr(stage, "dies", False) and str(step).startswith("B1"):
            os.kill(os.getpid(), 9)
        do(self, step)

    loop.Loop.step, stage._Passes._do = failing, dying
"""


def test_a_stage_that_is_killed_ends_the_run_with_a_line(megads):
    done = megads.train("r", **CHUNKS, TRAIN_ITERS="4000", PYTHONPATH=megads.plant(PLANTED))
    assert done.returncode not in (0, 75), done.stderr
    assert "Traceback" not in done.stderr
    assert "terminate called" not in done.stderr
    assert "the run failed: rank 1 host" in done.stderr
    assert "killed by signal 9 (SIGKILL)" in done.stderr.splitlines()[-1]
