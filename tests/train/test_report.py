import pytest

from megads.train.loop import Outcome
from megads.train.report import ending, longer


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("TP=2 TRAIN_ITERS=150 bash train_7B.sh", "TRAIN_ITERS=300 TP=2 bash train_7B.sh"),
        ("TRAIN_TOKENS=1e6 TP=2 bash train_7B.sh", "TRAIN_ITERS=300 TP=2 bash train_7B.sh"),
        ("megads train --set train.train_iters=150 --dry-run", "TRAIN_ITERS=300 megads train --dry-run"),
        ("megads train --preset tiny", "TRAIN_ITERS=300 megads train --preset tiny"),
    ],
)
def test_a_longer_run_is_asked_for_in_one_way_only(command, expected):
    assert longer(command, 300) == expected


def test_the_end_says_how_far_and_why():
    assert ending(Outcome(0, "done", 10), 10) == "done     10 of 10 iterations"
    assert ending(Outcome(75, "asked to stop; saved at iteration 4", 4), 10) == (
        "stopped  4 of 10 iterations; asked to stop; saved at iteration 4"
    )
