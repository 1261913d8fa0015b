"""A whole run in days, jobs, node-hours and kWh: by hand, and played through job by job."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics

import pytest

from megads.errors import ConfigError
from megads.plan.costs import campaign as module
from megads.plan.costs.campaign import Terms, Work, best_save_interval_steps, campaign, save_times, steps_of, work_of
from megads.plan.costs.failures import SaveTimes
from megads.plan.costs.saves import bytes_per_save
from megads.train.fault import stop
from tests.checkpoint.faked import derived
from tests.pairs import SEED

WORK = Work(steps=1000, step_s=10.0, hosts=64, ranks=256, save_bytes=10**12, save_interval_steps=100, kept_saves=3)
TERMS = Terms(
    start_s=120.0, storage_gb_s=50.0, walltime_hours=1.0, host_watts=3000.0, pue=1.2, grams_per_kwh=400.0
)  # a save takes 20 s


def test_steps_of_tokens():
    assert steps_of(10**12, 4 * 2**20) == 238_419
    assert steps_of(8, 4) == 2
    assert steps_of(1, 4) == 1
    with pytest.raises(ConfigError, match="0 tokens in steps of 4"):
        steps_of(0, 4)


def test_a_run_in_one_job_by_hand():
    found = campaign(WORK, dataclasses.replace(TERMS, walltime_hours=0.0))
    assert (found.jobs, found.saves, found.failures, found.lost_s, found.end_s) == (1, 10, 0, 0, 0)
    assert found.total_s == 120 + 1000 * 10 + 10 * 20
    assert found.node_hours == pytest.approx(64 * 10_320 / 3600)
    assert found.days == pytest.approx(10_320 / 86_400)
    assert found.kwh == pytest.approx(64 * 10_320 / 3600 * 3 * 1.2)
    assert found.co2_kg == pytest.approx(found.kwh * 0.4)
    assert (found.written_bytes, found.kept_bytes) == (10 * 10**12, 3 * 10**12)
    assert found.efficiency == pytest.approx(10_000 / 10_320)
    assert found.unknown == ("host_mtbf_hours", "walltime_hours")


def test_jobs_start_and_save():
    """3,600 s of a job: 120 s to start, 20 + 11.28 s for the end, and 61.28 s must be free before the last step."""
    found = campaign(WORK, TERMS)
    room, margin = 3600 - 120, 2 * 20 + 10 + 0.005 * 256 + 10
    useful = 10_000 + 10 * 20
    assert found.jobs == 1 + math.ceil((useful - room) / (room - margin)) == 3
    assert found.end_s == pytest.approx(2 * (20 + 11.28))
    assert found.start_s == 3 * 120
    assert found.total_s == pytest.approx(useful + 3 * 120 + 2 * 31.28)
    assert found.saves == 12


def test_what_a_place_does_not_say_is_named_and_not_guessed():
    found = campaign(WORK, Terms())
    assert (found.kwh, found.co2_kg, found.save_s) == (None, None, 0)
    assert found.unknown == (
        *("start_s", "storage_gb_s", "host_mtbf_hours", "walltime_hours", "host_watts", "grams_per_kwh"),
    )
    assert campaign(WORK, Terms(host_watts=1000)).co2_kg is None


def test_saves_in_the_background_pause_for_the_copy():
    later = dataclasses.replace(WORK, is_saved_in_background=True)
    assert save_times(WORK, TERMS) == SaveTimes(20.0)
    assert save_times(later, TERMS) == SaveTimes(10**12 / 256 / 20e9, 20.0)
    fast = dataclasses.replace(TERMS, storage_gb_s=1e6)
    assert save_times(later, fast).pause_s == save_times(later, fast).lag_s  # no copy takes longer than the writing
    assert campaign(later, TERMS).save_s < campaign(WORK, TERMS).save_s


def test_the_work_of_a_run():
    run = derived(TRAIN_ITERS="500", SAVE_INTERVAL="60", CKPT_KEEP="2", EVAL_INTERVAL="200", EVAL_ITERS="6")
    work = work_of(run, 2, 8, 3.0)
    assert (work.steps, work.step_s, work.hosts, work.ranks) == (500, 3.0, 2, 8)
    assert (work.save_bytes, work.save_interval_steps, work.kept_saves) == (bytes_per_save(run), 60, 2)
    assert (work.validations, work.validation_s) == (3, pytest.approx(6.0))  # before the first step, after 200 and 400
    assert work_of(derived(EVAL_ITERS="0"), 1, 1, 1.0).validations == 0
    assert work_of(derived(SAVE_IN_BACKGROUND="1"), 1, 1, 1.0).is_saved_in_background
    assert campaign(work, Terms()).total_s == pytest.approx(1500 + 18)


def test_the_end_of_a_job_is_that_of_the_training_loop():
    ours = module.STOP_SAVES, module.TEARDOWN_S, module.TEARDOWN_PER_RANK_S
    assert ours == (stop.SAVES, stop.TEARDOWN_S, stop.TEARDOWN_PER_RANK_S)


def test_the_best_interval_ends_the_run_first():
    fails = dataclasses.replace(TERMS, host_mtbf_hours=300.0, walltime_hours=0.0)  # every 4.7 hours
    best = best_save_interval_steps(WORK, fails)
    assert best == campaign(WORK, fails).best_save_interval_steps == pytest.approx(81, abs=1)

    def total(steps: int) -> float:
        return campaign(dataclasses.replace(WORK, save_interval_steps=steps, steps=100_000), fails).total_s

    assert min((10, 40, best, 160, 1000), key=total) == best
    assert best_save_interval_steps(WORK, TERMS) == 0


def _played(pick: random.Random, work: Work, terms: Terms) -> tuple[float, int]:
    """Return the seconds in jobs and their number, step by step with failures that a job survives."""
    saves = save_times(work, terms)
    margin = 2 * saves.pause_s + 10 + 0.005 * work.ranks + work.step_s
    mtbf = terms.host_mtbf_hours * 3600 / work.hosts
    now = total = 0.0
    done = saved = 0
    failure, jobs = pick.expovariate(1 / mtbf), 1
    now = terms.start_s
    while done < work.steps:
        seconds = work.step_s + saves.pause_s * ((done + 1) % work.save_interval_steps == 0)
        if now + seconds >= failure:
            now, done = failure + terms.start_s, saved
            failure += pick.expovariate(1 / mtbf)
            continue
        now, done = now + seconds, done + 1
        if done % work.save_interval_steps == 0:
            saved = done
        if now - total + margin >= terms.walltime_hours * 3600 and done < work.steps:
            now += saves.pause_s + 10 + 0.005 * work.ranks + terms.start_s
            saved, jobs, total = done, jobs + 1, now - terms.start_s
    return now, jobs


def test_jobs_with_failures_as_played_through():
    """Jobs save at their end, which makes up for a part of what failures take: within 2 %."""
    pick = random.Random(f"{SEED} campaign")
    work = dataclasses.replace(WORK, steps=6000, save_interval_steps=50)
    terms = dataclasses.replace(TERMS, host_mtbf_hours=100.0, walltime_hours=6.0)
    found = campaign(work, terms)
    played = [_played(pick, work, terms) for _ in range(60)]
    assert statistics.mean(seconds for seconds, _ in played) == pytest.approx(found.total_s, rel=0.02)
    assert statistics.mean(jobs for _, jobs in played) == pytest.approx(found.jobs, abs=0.6)
    assert found.lost_s > 0.06 * found.total_s


@pytest.mark.parametrize(
    ("changes", "terms", "message"),
    [
        ({"steps": 0}, {}, "steps 0; it must be above 0"),
        ({"step_s": math.inf}, {}, "step_s inf"),
        ({"step_s": math.nan}, {}, "step_s nan"),
        ({"hosts": 0}, {}, "hosts 0"),
        ({}, {"pue": 0.9}, "pue 0.9"),
        ({}, {"host_watts": -1.0}, "host_watts -1"),
        ({}, {"walltime_hours": 0.05}, "leave no time for a step of 10 s; use a queue with a longer limit"),
        ({"hosts": 100_000}, {"host_mtbf_hours": 100.0}, "it would not end"),
    ],
)
def test_impossible_campaigns_are_errors(changes, terms, message: str):
    with pytest.raises(ConfigError, match=message):
        campaign(dataclasses.replace(WORK, **changes), dataclasses.replace(TERMS, **terms))
