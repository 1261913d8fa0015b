"""A schedule is kept, prolonged or overridden when a run resumes, also with another batch."""

from pathlib import Path

import pytest

from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.resume.compatibility import changes, rate_change
from megads.config.schedule.batches import planned_samples
from megads.config.schedule.rates import Schedule
from megads.config.setting import Origin
from megads.config.sources.resolve import Resolved
from megads.config.tree import fields
from megads.data.datasets import samples_of
from megads.launch.preflight.banner import banner
from megads.launch.preflight.checkpoint_start import (
    find_start_point,
    keep_schedule,
    plan_end,
)
from megads.launch.schedulers.allocation import Allocation
from megads.plan.memory import estimate
from megads.text.units import count
from tests.checkpoint.faked import derived, fake

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _runs_of_their_own(tmp_path, monkeypatch):
    """Keep the runs of a checkout, which a user may have made there, out of it."""
    monkeypatch.chdir(tmp_path)


def test_the_schedule_that_is_kept_gives_the_same_rate_for_the_same_samples(tmp_path):
    before = derived(LR="0.01", MIN_LR="0.001", LR_DECAY_STYLE="linear", LR_WARMUP_ITERS="4", LR_DECAY_ITERS="20")
    fake(tmp_path / "checkpoints", 6, before)
    now = derived(SCHEDULE_ON_RESUME="keep", GLOBAL_BATCH="16", LR="0.5", TRAIN_ITERS="100")
    resolved = Resolved(now, dict.fromkeys(_names(now), Origin("env", "X")))
    kept = keep_schedule(resolved, find_start_point(now, tmp_path))
    optim = kept.run.optim
    assert (optim.lr, optim.lr_decay_iters, optim.lr_decay_samples, optim.lr_warmup_samples) == (0.01, 10, 160, 32)
    old, new = Schedule.of(before), Schedule.of(kept.run)
    for samples in range(0, 400, 16):
        assert new.lr(samples) == pytest.approx(old.lr(samples))
    path = tmp_path / "checkpoints/iter_0000006"
    assert kept.origins["optim.lr"] == Origin("checkpoint", str(path))
    assert f"LR=0.5 (env X) is overridden by 0.01 (checkpoint {path})" in kept.notes
    assert kept.run.train == now.train


INFINITE = {"MIN_LR": "1e-3", "COOLDOWN": "0.25", "LR_CONSTANT_FRAC": "0.25"}
KEPT = {
    "constant": {},
    "linear": {"MIN_LR": "1e-3"},
    "cosine": {"LR_DECAY_SAMPLES": "77", "LR_WARMUP_INIT": "1e-4"},
    "inverse-square-root": {"LR_DECAY_TOKENS": "2000", "LR_WARMUP_TOKENS": "500"},
    "wsd": {"COOLDOWN": "0.25", "LR_COOLDOWN_STYLE": "cosine"},
    "infinite-cosine": INFINITE,
    "infinite-inverse-square-root": {**INFINITE, "LR_TIMESCALE": "3", "LR_CONSTANT": "4e-3"},
}
WEIGHTS = {"WEIGHT_DECAY_INCR_STYLE": "linear", "START_WEIGHT_DECAY": "0.01", "END_WEIGHT_DECAY": "0.2"}


def _resumed(tmp_path, style, **now):
    """Return the schedules of a run of 12 steps, and of what resumes from its step 6."""
    before = derived({"LR": "0.01", "LR_DECAY_STYLE": style, **WEIGHTS, **KEPT[style]})
    if not (tmp_path / "checkpoints").exists():
        fake(tmp_path / "checkpoints", 6, before)
    run = derived(now)
    resolved = Resolved(run, dict.fromkeys(_names(run), Origin("env", "X")))
    return Schedule.of(before), Schedule.of(keep_schedule(resolved, find_start_point(run, tmp_path)).run), run


@pytest.mark.parametrize("style", KEPT)
@pytest.mark.parametrize("batch", ["8", "16"])
def test_every_style_is_kept_or_overridden_as_a_whole(style, batch, tmp_path):
    now = {"LR": "0.5", "MIN_LR": "1e-2", "GLOBAL_BATCH": batch, "LR_WARMUP_ITERS": "1"}
    now["TRAIN_ITERS"] = str(96 // int(batch))
    old, kept, _ = _resumed(tmp_path, style, SCHEDULE_ON_RESUME="keep", **now)
    for samples in range(130):
        rates = old.at(samples)
        assert kept.at(samples).lr == pytest.approx(rates.lr, rel=1e-12)
        assert kept.at(samples).weight_decay == pytest.approx(rates.weight_decay, rel=1e-12)
    _, overridden, run = _resumed(tmp_path, style, SCHEDULE_ON_RESUME="override", **now)
    assert overridden == Schedule.of(run)
    assert overridden.max_lr == 0.5


@pytest.mark.parametrize("style", KEPT)
def test_a_longer_run_keeps_its_rates_and_prolongs_only_what_is_constant(style, tmp_path):
    old, kept, _ = _resumed(tmp_path, style, SCHEDULE_ON_RESUME="keep", TRAIN_ITERS="24")
    borders = old.borders()
    constant_until = borders.get("constant", 200.0)
    for samples in range(200):
        # What comes after the constant part comes 12 steps of 8 samples later.
        same = samples if samples <= constant_until else max(samples - 96, constant_until)
        assert kept.lr(samples) == pytest.approx(old.lr(int(same)), rel=0.02 if same != int(same) else 1e-9)
    # Weight decay has no constant part; it ended with the run as planned.
    assert kept.weight_decay == old.weight_decay


def test_a_longer_run_with_its_own_settings_cools_later(tmp_path):
    _, before, _ = _resumed(tmp_path, "wsd", LR="0.01", LR_DECAY_STYLE="wsd", COOLDOWN="0.25")
    _, now, _ = _resumed(tmp_path, "wsd", LR="0.01", LR_DECAY_STYLE="wsd", COOLDOWN="0.25", TRAIN_ITERS="24")
    assert (before.borders()["constant"], now.borders()["constant"]) == (72, 144)
    assert before.lr(48) == now.lr(48) == now.lr(144) == 0.01


CHANGED = {"LR": "0.01", "MIN_LR": "0.001", "LR_DECAY_STYLE": "linear", "LR_WARMUP_FRAC": "0"}


def _with_other_batches(tmp_path, batch, step=6, **now):
    """Return what a run of 12 steps of 8 samples becomes that resumes behind ``step`` with another batch."""
    before = derived(CHANGED)
    fake(tmp_path / "checkpoints", step, before, progress={"iteration": step, "consumed_samples": 8 * step})
    run = derived({**CHANGED, "GLOBAL_BATCH": str(batch), **now})
    return plan_end(Resolved(run, dict.fromkeys(fields(), Origin("env", "X"))), find_start_point(run, tmp_path))


@pytest.mark.parametrize("batch", [16, 4])
def test_a_run_that_resumes_with_another_batch_plans_what_it_will_consume(tmp_path, batch):
    found = _with_other_batches(tmp_path, batch)
    ends = 48 + 6 * batch
    assert planned_samples(found.run) == ends
    assert found.notes == (
        f"GLOBAL_BATCH={batch} differs from the 6 steps so far: they consumed 48 samples, and TRAIN_ITERS=12 ends "
        f"at {ends}, not {12 * batch}",
    )
    # Data for all of it, and a schedule that ends with it.
    assert samples_of(found.run)["train"] == ends
    schedule = Schedule.of(found.run)
    assert schedule.lr(ends) == pytest.approx(0.001)
    assert schedule.lr(ends - batch) > 0.001
    text = banner(found.run, Allocation("none", ("here",), 1), estimate(found.run, 1), 0, Path("r"))
    assert f"12 iterations, {count(ends * 32)} tokens;" in text
    # What it saves plans the same for whoever resumes from it.
    fake(tmp_path / "checkpoints", 8, found.run, progress={"iteration": 8, "consumed_samples": 48 + 2 * batch})
    again = plan_end(Resolved(found.run, found.origins), find_start_point(found.run, tmp_path))
    assert again.run.train.samples_offset == found.run.train.samples_offset
    assert list(changes(found.run.model_dump(), again.run)) == []


def test_a_run_that_resumes_with_its_own_batch_plans_as_before(tmp_path):
    found = _with_other_batches(tmp_path, 8)
    assert (found.run.train.samples_offset, found.notes) == (0, ())


def test_an_explicit_decay_stays_where_it_is(tmp_path):
    found = _with_other_batches(tmp_path, 16, LR_DECAY_SAMPLES="150")
    assert Schedule.of(found.run).decay_samples == 150


def test_a_budget_of_samples_is_met_with_another_batch(tmp_path):
    """12 steps of 8 samples were planned; 6 of them and 3 steps of 16 are as many samples."""
    before = derived(CHANGED)
    fake(tmp_path / "checkpoints", 6, before, progress={"iteration": 6, "consumed_samples": 48})
    run = derived({**CHANGED, "GLOBAL_BATCH": "16", "TRAIN_ITERS": "0", "TRAIN_SAMPLES": "96"})
    assert run.train.train_iters == 6
    origins = {**dict.fromkeys(fields(), Origin("derived", "X")), "train.train_samples": Origin("env", "X")}
    found = plan_end(Resolved(run, origins), find_start_point(run, tmp_path))
    assert found.run.train.train_iters == found.run.optim.lr_decay_iters == 9
    assert planned_samples(found.run) == 96
    assert Schedule.of(found.run).decay_samples == 96


def test_a_cooldown_in_steps_ends_with_a_run_that_changed_its_batch(tmp_path):
    found = _with_other_batches(tmp_path, 16, LR_DECAY_STYLE="wsd", LR_COOLDOWN_ITERS="2")
    assert Schedule.of(found.run).borders()["constant"] == 48 + 4 * 16


def test_a_rate_that_jumps_where_a_run_goes_on_is_told(tmp_path):
    env = {"LR": "0.01", "LR_DECAY_STYLE": "linear", "LR_WARMUP_FRAC": "0"}
    progress = {"iteration": 6, "scheduled_samples": 48}
    fake(tmp_path, 6, derived(env), progress=progress)
    manifest = read_manifest(tmp_path / "iter_0000006")
    assert rate_change(manifest, derived(env)) == ""
    assert rate_change(manifest, derived(env, TRAIN_ITERS="24")) == (
        "had a learning rate of 0.005 for the next step, this run has 0.0075; "
        "SCHEDULE_ON_RESUME=keep takes the checkpoint's schedule"
    )
    fake(tmp_path, 7, settings={}, progress=progress)
    assert rate_change(read_manifest(tmp_path / "iter_0000007"), derived(env)) == ""


def test_a_checkpoint_that_is_older_than_a_setting_has_its_default(tmp_path):
    before = derived(LR="0.01")
    settings = before.model_dump()
    for name in ("lr_cooldown_frac", "lr_decay_samples", "weight_decay_incr_style", "start_weight_decay"):
        del settings["optim"][name]
    del settings["lr_finder"]
    fake(tmp_path / "checkpoints", 6, before, settings={**settings, "gone": {"a": 1}})
    run = derived(SCHEDULE_ON_RESUME="keep", LR="0.5")
    resolved = Resolved(run, dict.fromkeys(_names(run), Origin("env", "X")))
    assert Schedule.of(keep_schedule(resolved, find_start_point(run, tmp_path)).run) == Schedule.of(before)


def _names(run):
    return [f"optim.{name}" for name in type(run.optim).model_fields]


def test_a_schedule_is_kept_only_where_one_goes_on(tmp_path):
    imported = tmp_path / "imported"
    fake(imported, 0, kinds=("weight",), settings={}, progress={})
    keep = {"SCHEDULE_ON_RESUME": "keep", "LOAD": str(imported)}
    for settings in ({}, {"SCHEDULE_ON_RESUME": "keep"}, {**keep, "FINETUNE": "1"}):
        run = derived(settings)
        resolved = Resolved(run, {})
        assert keep_schedule(resolved, find_start_point(run, tmp_path / "r")) is resolved
    run = derived(keep)
    (note,) = keep_schedule(Resolved(run, {}), find_start_point(run, tmp_path / "r")).notes
    assert note == f"SCHEDULE_ON_RESUME=keep: {imported}/iter_0000000 has no schedule; the current settings are used"
