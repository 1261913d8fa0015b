"""Rules of the schedules."""

from megads.config.rules.schedule import RULES
from tests.checkpoint.faked import derived


def test_two_lengths_of_the_weight_decay_are_refused():
    env = {"WEIGHT_DECAY_INCR_STYLE": "linear", "WEIGHT_DECAY_ITERS": "6", "WEIGHT_DECAY_TOKENS": "7"}
    problems = [problem.text for rule in RULES for problem in rule(derived(env), 1)]
    assert problems == ["WEIGHT_DECAY_TOKENS=7 and WEIGHT_DECAY_ITERS=6 are two lengths of one thing"]
