"""Why one layout is slower than another."""

from __future__ import annotations

from megads.plan.search.because import slower
from megads.plan.search.search import Candidate
from megads.plan.time.step import Line, StepTime


def _candidate(**seconds):
    names = {"compute": "matrix products", "communication": "communication, tensor axis", "idle": "idle: pipeline"}
    lines = tuple(Line(names[kind], value, kind) for kind, value in seconds.items())
    time = StepTime(lines, tokens=1000, world_size=2, mfu_full=0.5, mfu_causal=0.5)
    return Candidate({}, run=object(), memory=object(), time=time)


def test_what_grew_most_is_named_with_its_share():
    best = _candidate(compute=0.8, communication=0.1, idle=0.1)
    text = slower(_candidate(compute=0.8, communication=0.6, idle=0.1), best)
    assert text.startswith("50.0 % slower: communication takes 40% of the step, not 10%")
    assert text.endswith("(tensor axis)")
    assert "waiting of stages takes" in slower(_candidate(compute=0.8, communication=0.1, idle=0.3), best)


def test_a_part_that_grew_with_the_whole_is_named_by_its_own_growth():
    best = _candidate(compute=0.8, communication=0.1, idle=0.1)
    text = slower(_candidate(compute=0.88, communication=0.12, idle=0.12), best)
    assert text == "12.0 % slower: computation takes 10% more time for each token (matrix products)"
