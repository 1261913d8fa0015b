import pytest

from megads.config.schema import RunConfig, TrainConfig
from megads.config.sources.flags import flags
from megads.config.tree import env_name
from megads.train.loop import Outcome
from megads.train.start_and_end import LENGTHS, ending, longer, next_length


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("TP=2 TRAIN_ITERS=150 bash train_7B.sh", "TRAIN_ITERS=300 TP=2 bash train_7B.sh"),
        ("TRAIN_TOKENS=1e6 TP=2 bash train_7B.sh", "TRAIN_ITERS=300 TP=2 bash train_7B.sh"),
        ("megads train --set train.train_iters=150 --dry-run", "TRAIN_ITERS=300 megads train --dry-run"),
        ("megads train --preset tiny", "TRAIN_ITERS=300 megads train --preset tiny"),
        ("megads train --set=train.train_iters=150 --lr 1", "TRAIN_ITERS=300 megads train --lr 1"),
        ("megads train --train-iters 150 --lr 1", "TRAIN_ITERS=300 megads train --lr 1"),
        ("megads train --lr 1 --train-iters=150", "TRAIN_ITERS=300 megads train --lr 1"),
        ("megads train --train-samples 1000 --lr 1", "TRAIN_ITERS=300 megads train --lr 1"),
        (
            "RUN_DIR='a TRAIN_ITERS=2 b' TRAIN_ITER=2 megads train",
            "TRAIN_ITERS=300 RUN_DIR='a TRAIN_ITERS=2 b' megads train",
        ),
        ("MODEL=\\'x megads train --set optim.lr=1", "TRAIN_ITERS=300 MODEL=\\'x megads train --set optim.lr=1"),
    ],
)
def test_a_longer_run_is_asked_for_in_one_way_only(command, expected):
    assert longer(command, 300) == expected


def test_the_end_says_how_far_and_why():
    assert ending(Outcome(0, "done", 10), 10) == "done     10 of 10 iterations"
    assert ending(Outcome(75, "asked to stop; saved at iteration 4", 4), 10) == (
        "stopped  4 of 10 iterations; asked to stop; saved at iteration 4"
    )


def test_every_option_and_variable_of_the_length_is_replaced():
    options = [each for name, each in flags().items() if {*each.gives} & {*LENGTHS}]
    assert {"--train-iters", "--train-samples"} <= {each.name for each in options}
    for each in options:
        assert longer(f"megads train {each.name} 7", 14) == "TRAIN_ITERS=14 megads train"
    for name in LENGTHS:
        assert longer(f"{env_name(name)}=7 megads train", 14) == "TRAIN_ITERS=14 megads train"


def test_a_planned_run_goes_on_to_its_plan_and_beyond_it_without():
    plan = {"planned_iters": 40, "planned_samples": 320}
    run = RunConfig(train=TrainConfig(train_iters=10, **plan))
    assert (next_length(run), next_length(RunConfig(train=TrainConfig(train_iters=40, **plan)))) == (40, 80)
    command = "PLANNED_ITERS=40 TRAIN_ITERS=10 megads train --set train.planned_samples=320"
    assert longer(command, 40, 40) == "TRAIN_ITERS=40 PLANNED_ITERS=40 megads train --set train.planned_samples=320"
    assert longer(command, 80, 40) == "TRAIN_ITERS=80 megads train"
