"""Leaving before the allocation ends."""

from __future__ import annotations

import json
import random
import time

import pytest

from megads.config.schema import ModelConfig, RunConfig
from megads.config.settings.checkpoint import CheckpointConfig
from megads.train.fault.stop import RECENT, TEARDOWN_PER_RANK_S, TEARDOWN_S, Deadline, step_time_of

NOON = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))


def deadline(left: float, save_s: float = 20.0) -> Deadline:
    """Return a deadline that is ``left`` seconds ahead."""
    return Deadline(NOON + left, save_s, teardown_s=10.0, now=lambda: NOON)


def test_twice_a_save_and_the_teardown_must_fit():
    assert not deadline(50.1).is_near(step=False, validation=False)
    assert deadline(50.0).is_near(step=False, validation=False)


def test_the_next_step_and_a_validation_that_is_due_must_fit_as_well():
    near = deadline(100.0)
    near.steps.extend([9.0, 30.0, 12.0])
    near.validated(15.0)
    near.validated(25.0)
    near.validated(5.0)
    assert near.needs_s(step=True, validation=True) == 40 + 10 + 30 + 25
    assert near.is_near(step=True, validation=True)
    assert not near.is_near(step=True, validation=False)


def test_the_slow_first_step_is_forgotten():
    near = deadline(100.0)
    near.steps.extend([300.0, *([1.0] * RECENT)])
    assert near.needs_s(step=True, validation=False) == 51.0


def test_before_the_first_step_what_else_is_known_counts():
    near = deadline(100.0)
    assert near.needs_s(step=True, validation=False) == 50.0
    # A quarter of what is left at most: a long set-up is not the reason for a job without a step.
    near.set_up_s = 12.0
    assert near.needs_s(step=True, validation=False) == 62.0
    near.set_up_s = 300.0
    assert near.needs_s(step=True, validation=False) == 75.0
    near.step_s = 31.0  # of an earlier start
    assert near.needs_s(step=True, validation=False) == 81.0
    near.validated(24.0, batches=2)
    assert near.needs_s(step=True, validation=False) == 50.0 + 36.0
    assert near.needs_s(step=False, validation=False) == 50.0
    near.steps.append(3.0)
    assert near.needs_s(step=True, validation=False) == 53.0


def test_the_last_step_of_an_earlier_start_is_found(tmp_path):
    assert step_time_of(tmp_path) == 0.0
    rows = [{"iteration": 1, "lm_loss": 2.0, "step_time_s": 7.5}, {"iteration": 1, "valid_loss": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert step_time_of(tmp_path) == 7.5


def test_what_a_save_took_replaces_the_guess_and_the_longest_counts():
    near = deadline(1000.0, save_s=300.0)
    near.saved(8.0)
    assert near.needs_s(step=False, validation=False) == 26.0
    near.saved(12.0)
    near.saved(9.0)
    assert near.needs_s(step=False, validation=False) == 34.0


def test_without_an_end_nothing_is_near():
    assert not Deadline(0.0, 1e9).is_near(step=True, validation=True)


def test_the_guess_grows_with_what_one_rank_writes():
    model = ModelConfig(num_layers=32, hidden_size=4096, num_heads=32, ffn_hidden_size=11008, vocab_size=32000)
    env = {"MEGADS_ENDS_AT": "1700000000"}
    one = Deadline.of(RunConfig(model=model), env, 1, 0.0)
    many = Deadline.of(RunConfig(model=model), env, 10_000, 0.0)
    assert one.ends_at == 1700000000.0
    assert 400 < one.save_s < 1000
    assert many.save_s - 2 == pytest.approx((one.save_s - 2) / 10_000)
    assert many.teardown_s == TEARDOWN_S + TEARDOWN_PER_RANK_S * 10_000
    weights = RunConfig(model=model, checkpoint=CheckpointConfig(save_optim=False))
    assert Deadline.of(weights, env, 1, 0.0).save_s - 2 == pytest.approx((one.save_s - 2) / 3)
    assert Deadline.of(RunConfig(model=model), env, 1, 77.0).save_s == 77.0
    assert Deadline.of(RunConfig(model=model), {}, 1, 0.0).ends_at == 0.0


def test_a_save_in_the_background_is_completed_before_the_last_one():
    near = deadline(1000.0)
    near.saved(8.0)
    near.is_writing = True
    assert near.needs_s(step=False, validation=False) == 8.0 + 2 * 8.0 + 10.0


def test_saves_that_grow_leave_room_for_a_longer_one():
    near = deadline(1000.0)
    for seconds, expected in ((8.0, 8.0), (12.0, 16.0), (13.0, 14.0), (13.0, 13.0), (9.0, 13.0), (12.0, 13.0)):
        near.saved(seconds)
        assert near.needs_s(step=False, validation=False) == 2 * expected + 10.0
    near.saved(20.0)
    near.is_writing = True  # 28, and 36 after it
    assert near.needs_s(step=False, validation=False) == 28.0 + 2 * 36.0 + 10.0
    near.is_writing = False
    assert near.needs_s(step=False, validation=False) == 2 * 28.0 + 10.0
    assert near.needs_s(step=False, validation=False, save=True) == 28.0 + 2 * 36.0 + 10.0  # one begins


def test_a_save_that_takes_longer_than_any_before_is_counted_as_long_as_it_is_seen():
    at = [NOON]
    near = Deadline(NOON + 1000.0, 20.0, teardown_s=10.0, now=lambda: at[0])
    near.saved(8.0)
    near.still_writes()  # nothing is
    near.begins_to_write()
    at[0] += 5.0
    near.still_writes()
    assert near.needs_s(step=False, validation=False) == 3 * 8.0 + 10.0
    at[0] += 25.0
    near.still_writes()
    at[0] += 600.0  # a long step, after which nobody writes any more
    assert near.needs_s(step=False, validation=False) == 3 * 30.0 + 10.0
    near.is_writing = False
    near.saved(8.0)
    near.begins_to_write()
    assert near.needs_s(step=False, validation=False) == 3 * 8.0 + 10.0


def _left_at_the_end(seed: int) -> float:
    """Return the seconds between the end of a run whose saves grow, and of its allocation; below 0: it was killed."""
    draw = random.Random(seed)
    step_s, every, ends = draw.uniform(0.5, 20.0), draw.randint(1, 30), 0.0
    first, factor, more = draw.uniform(1.0, 100.0), draw.choice((1.0, draw.uniform(1.0, 1.4))), draw.random()

    def save_s(number: int) -> float:
        return first * (factor**number + (number * more if factor == 1.0 else 0.0))

    at, saves, steps, until = [0.0], 0, 0, 0.0
    near = Deadline(1e12, save_s(0), teardown_s=10.0, now=lambda: at[0])
    while True:
        near.steps.append(step_s)
        if near.is_writing and at[0] < until:
            near.still_writes()
        if near.is_near(step=True, validation=False, save=(steps + 1) % every == 0):
            break
        if near.is_writing and at[0] >= until:
            near.is_writing = False
            near.saved(save_s(saves - 1))
        at[0] += step_s
        steps += 1
        if steps % every == 0:
            if near.is_writing:
                at[0] = max(at[0], until)
                near.is_writing = False
                near.saved(save_s(saves - 1))
            if saves == 2:  # two are known, and it may end any time
                ends = near.ends_at = (
                    at[0] + near.needs_s(step=True, validation=False, save=True) + draw.uniform(0.0, 2000.0)
                )
            near.begins_to_write()
            until, saves = at[0] + save_s(saves), saves + 1
    done = max(at[0], until) if near.is_writing else at[0]
    return ends - done - save_s(saves) - near.teardown_s


def test_the_last_save_of_drawn_sequences_that_grow_is_complete_in_time():
    left = {seed: _left_at_the_end(seed) for seed in range(400)}
    assert {seed: seconds for seed, seconds in left.items() if seconds < 0} == {}


def test_the_forecast_says_whether_the_iterations_fit():
    assert deadline(7200.0).forecast(3600.0, 100) == (
        "100 iterations left need about 1h00m; the allocation ends at 14:00: they fit"
    )
    assert deadline(1850.0).forecast(3600.0, 100) == (
        "100 iterations left need about 1h00m; the allocation ends at 12:30: about 50 fit, "
        "then the run saves and exits with 75; rerun the same command to resume"
    )


def test_a_clock_that_is_set_back_moves_no_deadline(monkeypatch):
    begun = time.time()
    near = Deadline(begun + 100.0, 20.0, teardown_s=10.0)
    assert not near.is_near(step=False, validation=False)
    monkeypatch.setattr(time, "time", lambda: begun - 3600.0)
    passed = time.monotonic() + 60.0
    monkeypatch.setattr(time, "monotonic", lambda: passed)
    assert near.is_near(step=False, validation=False)
