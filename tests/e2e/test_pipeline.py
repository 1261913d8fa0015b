"""Pipeline stages through the real command: stopped and resumed, and resumed by other stages."""

import pytest

from tests.e2e.test_resume import DROPOUT, numbers

PIPELINE = {"PP": "2", "NLAYERS": "4"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param({**PIPELINE, "MODEL_FAMILY": "gpt"}, id="pp2-gpt-dropout"),
        pytest.param({**PIPELINE, "SP": "2", **DROPOUT}, id="pp2-sp2-dropout"),
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
