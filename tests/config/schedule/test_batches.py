"""Samples of every step against Megatron's rule, step by step, and the closed forms against counting."""

from __future__ import annotations

import itertools
import random

import pytest

from megads.config.schedule.batches import BatchSchedule, SkipRanges
from megads.errors import ConfigError


def upstream_batch(start, increment, ramp_samples, final, consumed):
    """Megatron-LM's num_microbatches_calculator, as a function."""
    if consumed > ramp_samples:
        return final
    return start + int(consumed / (ramp_samples / ((final - start) // increment))) * increment


def upstream_iterations(schedule, train_samples):
    """Megatron-LM's update_train_iters: step through the ramp, divide the rest."""
    iterations = consumed = 0
    while consumed <= schedule.ramp_samples:
        consumed += schedule.batch_at(consumed)
        iterations += 1
    return iterations + (train_samples - consumed) // schedule.final


def sizes_of(schedule, steps):
    consumed, sizes = 0, []
    for _ in range(steps):
        sizes.append(schedule.batch_at(consumed))
        consumed += sizes[-1]
    return sizes


RAMPS = [
    ("16 16 5859375", 1536),
    ("2 2 1_000", 16),
    ("8,8,100", 32),
    ("1 1 7", 8),
    ("4 4 3", 64),
    ("32 32 65_536", 2048),
]


@pytest.mark.parametrize(("text", "final"), RAMPS)
def test_every_step_has_upstreams_batch(text, final):
    schedule = BatchSchedule.parse(text, final)
    consumed = 0
    for _ in range(9000):
        assert schedule.batch_at(consumed) == upstream_batch(
            schedule.start, schedule.increment, schedule.ramp_samples, final, consumed
        )
        consumed += schedule.batch_at(consumed)


def test_bloom_style_ramp_has_95_increments_of_61677_samples():
    schedule = BatchSchedule.parse("16 16 5859375", 1536)
    assert len(schedule.sizes) == 96
    assert schedule.batch_at(0) == schedule.batch_at(61_677) == 16
    assert schedule.batch_at(61_678) == 32
    assert schedule.batch_at(5_859_375 - 61_680) < 1536
    assert schedule.batch_at(5_859_376) == 1536
    assert schedule.iterations_within(300_000_000) == upstream_iterations(schedule, 300_000_000)


@pytest.mark.parametrize(("text", "final"), [*RAMPS, ("", 8), ("8 8 1000", 8)])
def test_closed_forms_agree_with_counting(text, final):
    schedule = BatchSchedule.parse(text, final)
    steps = schedule.ramp_iterations + 50
    totals = [0, *itertools.accumulate(sizes_of(schedule, steps))]
    rng = random.Random(0)
    for done in {0, 1, steps, *(rng.randrange(steps) for _ in range(60))}:
        assert schedule.samples_after(done) == totals[done]
        more = rng.randrange(steps - done + 1)
        assert schedule.after(totals[done], more) == totals[done + more]
        assert schedule.iterations_within(totals[done]) == done
        if done:
            assert schedule.iterations_within(totals[done] - 1) == done - 1
    assert sum(size < final for size in sizes_of(schedule, steps)) == schedule.ramp_iterations


def test_random_ramps_agree_with_counting():
    rng = random.Random(1)
    for _ in range(300):
        start, increment = rng.randint(1, 9), rng.randint(1, 9)
        final = start + increment * rng.randint(0, 12)
        schedule = BatchSchedule.parse(f"{start} {increment} {rng.randint(1, 400)}", final)
        totals = [0, *itertools.accumulate(sizes_of(schedule, 500))]
        for done in range(0, 500, 37):
            assert schedule.samples_after(done) == totals[done]
            assert schedule.iterations_within(totals[done]) == done
            assert schedule.iterations_within(totals[done + 1] - 1) == done


def test_a_start_equal_to_the_final_batch_is_no_ramp():
    schedule = BatchSchedule.parse("8 4 1000", 8)
    assert not schedule.is_ramp
    assert schedule.batch_at(0) == schedule.batch_at(5000) == 8
    assert list(schedule.sizes) == [8]


def test_another_batch_in_the_middle_goes_on_from_the_samples_consumed():
    schedule = BatchSchedule.parse("2 2 100", 8)
    assert schedule.after(33, 2) == 33 + schedule.batch_at(33) + schedule.batch_at(33 + schedule.batch_at(33))


@pytest.mark.parametrize(
    ("text", "final", "message"),
    [
        ("16 16", 64, "is not START INCREMENT SAMPLES"),
        ("a b c", 64, "is not START INCREMENT SAMPLES"),
        ("-16 16 100", 64, "is not START INCREMENT SAMPLES"),
        ("128 16 100", 64, "START=128 must be at least 1 and at most GLOBAL_BATCH=64"),
        ("0 16 100", 64, "START=0 must be at least 1"),
        ("16 0 100", 64, "INCREMENT and SAMPLES must be at least 1"),
        ("16 16 0", 64, "INCREMENT and SAMPLES must be at least 1"),
        ("16 20 100", 64, "steps of INCREMENT=20; use RAMPUP_BATCH_SIZE=16,16,100 or GLOBAL_BATCH=56"),
        ("1 1 100", 20_002, "not at most 10000 steps of INCREMENT=1; use RAMPUP_BATCH_SIZE=1,3,100"),
        ("16 20 100", 36 + 19, "use RAMPUP_BATCH_SIZE=16,13,100 or GLOBAL_BATCH=36"),
        ("1 1 1" + "0" * 400, 8, "must be at most 1000000000000000"),
    ],
)
def test_what_is_no_ramp_is_refused(text, final, message):
    with pytest.raises(ConfigError) as caught:
        BatchSchedule.parse(text, final)
    assert message in str(caught.value)


def test_ranges_are_sorted_and_joined():
    ranges = SkipRanges.parse("301-400, 101-200 150-210 211-215")
    assert ranges.ranges == ((101, 215), (301, 400))
    assert str(ranges) == "101-215 301-400"
    assert [ranges.last_of(i) for i in (100, 101, 215, 216, 400)] == [0, 215, 215, 0, 400]
    assert ranges.count_until(350) == 115 + 50
    assert SkipRanges.parse("").last_of(1) == 0


def test_samples_left_are_those_that_are_trained_on():
    sizes, skips = BatchSchedule.parse("2 2 60", 8), SkipRanges.parse("3-5 9-20 30-99")
    taken = sizes_of(sizes, 40)
    totals = [0, *itertools.accumulate(taken)]
    for iterations in (1, 4, 8, 12, 25, 40):
        for done in range(iterations + 1):
            expected = sum(taken[i - 1] for i in range(done + 1, iterations + 1) if not skips.last_of(i))
            assert skips.samples_left(sizes, done, totals[done], iterations) == expected, (iterations, done)


@pytest.mark.parametrize("text", ["101", "101-", "5-3", "0-3", "1-2-3", "a-b", "1 - 2"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ConfigError, match="SKIP_TRAIN_ITERATION_RANGE="):
        SkipRanges.parse(text)
