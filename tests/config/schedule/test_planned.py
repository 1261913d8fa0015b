"""The planned length: what a run's order and schedule are made for, however far it trains."""

import pytest

from megads.config.derive import derive
from megads.config.run_folder import save_config
from megads.config.schedule.batches import planned_samples, samples_at_end
from megads.config.schedule.rates import Schedule
from megads.config.sources.resolve import resolve
from megads.errors import ConfigError
from tests.checkpoint.faked import derived

RUN = {"TRAIN_ITERS": "10", "GLOBAL_BATCH": "8", "SEQ": "32", "VOCAB_SIZE": "500"}


def test_the_schedule_is_that_of_the_whole_plan_and_the_run_ends_before():
    part, whole = derived({**RUN, "PLANNED_ITERS": "40"}), derived({**RUN, "TRAIN_ITERS": "40"})
    assert (samples_at_end(part), planned_samples(part)) == (80, 320)
    assert Schedule.of(part) == Schedule.of(whole)
    assert Schedule.of(derived(RUN)) != Schedule.of(whole)
    assert part.optim.lr_decay_iters == 40


@pytest.mark.parametrize("style", ["wsd", "infinite-cosine"])
def test_a_part_that_cools_is_at_the_end_of_the_plan(style):
    styled = {**RUN, "LR_DECAY_STYLE": style, "MIN_LR": "1e-5"}
    part, whole = derived({**styled, "PLANNED_ITERS": "40"}), derived({**styled, "TRAIN_ITERS": "40"})
    assert Schedule.of(part) == Schedule.of(whole)


@pytest.mark.parametrize(
    "given", [{"PLANNED_ITERS": "40"}, {"PLANNED_SAMPLES": "327"}, {"PLANNED_TOKENS": str(320 * 32 + 31)}]
)
def test_every_unit_means_whole_steps_and_the_run_s_own_file_says_the_same(tmp_path, given):
    found = derive(resolve(env={**RUN, **given}, machine="generic"), num_hosts=1, ranks_per_host=1, vocab_size=500)
    train = found.run.train
    assert (train.planned_iters, train.planned_samples, planned_samples(found.run)) == (40, 320, 320)
    save_config(found.run, found.origins, tmp_path / "config.yaml")
    again = resolve(env={"CONFIG_FILE": str(tmp_path / "config.yaml")}, machine="generic")
    again = derive(again, num_hosts=1, ranks_per_host=1, vocab_size=500)
    assert again.run.train == train
    assert again.run.optim == found.run.optim


def test_a_ramp_is_part_of_the_plan():
    ramp = {**RUN, "RAMPUP_BATCH_SIZE": "2 2 40"}
    part, whole = derived({**ramp, "PLANNED_ITERS": "40"}), derived({**ramp, "TRAIN_ITERS": "40"})
    assert planned_samples(part) == planned_samples(whole) < 320
    assert Schedule.of(part) == Schedule.of(whole)


def test_a_run_longer_than_its_plan_is_refused_with_what_would_do():
    with pytest.raises(ConfigError) as refused:
        derived({**RUN, "PLANNED_ITERS": "9"})
    assert str(refused.value) == (
        "PLANNED_ITERS=9 (env PLANNED_ITERS) is 9 steps, less than TRAIN_ITERS=10 (env TRAIN_ITERS); "
        "use PLANNED_ITERS=10 or a shorter run"
    )
    assert derived({**RUN, "PLANNED_ITERS": "10"}).train.planned_iters == 10


def test_two_plans_that_differ_are_refused():
    with pytest.raises(ConfigError, match=r"PLANNED_SAMPLES=80 .* is 10 steps, PLANNED_ITERS=40 .* is 40 steps"):
        derived({**RUN, "PLANNED_ITERS": "40", "PLANNED_SAMPLES": "80"})
    assert derived({**RUN, "PLANNED_ITERS": "40", "PLANNED_SAMPLES": "320"}).train.planned_iters == 40


def test_without_a_plan_nothing_is_filled():
    train = derived(RUN).train
    assert (train.planned_iters, train.planned_samples, train.planned_tokens) == (0, 0, 0)


def test_a_growing_order_decides_how_files_are_mixed(tmp_path):
    run = derived({**RUN, "SAMPLE_ORDER": "growing"})
    assert (run.data.blend_in_corpus, run.data.shuffle_in_corpus) == (True, False)
    asked = resolve(env={**RUN, "SAMPLE_ORDER": "growing"}, machine="generic")
    found = derive(asked, num_hosts=1, ranks_per_host=1, vocab_size=500)
    save_config(found.run, found.origins, tmp_path / "config.yaml")
    again = resolve(env={"CONFIG_FILE": str(tmp_path / "config.yaml")}, machine="generic")
    assert derive(again, num_hosts=1, ranks_per_host=1, vocab_size=500).run.data == found.run.data


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"SHUFFLE_SAMPLE_IN_CORPUS": "1"}, "SHUFFLE_SAMPLE_IN_CORPUS=True .* leave SHUFFLE_SAMPLE_IN_CORPUS unset"),
        ({"BLEND_SAMPLE_IN_CORPUS": "0"}, "BLEND_SAMPLE_IN_CORPUS=False .* or use SAMPLE_ORDER=planned"),
        ({"MODEL_FAMILY": "bert"}, "the samples of MODEL_FAMILY=bert are made for the length"),
    ],
)
def test_what_a_growing_order_cannot_do_is_refused(given, told):
    with pytest.raises(ConfigError, match=told):
        derived({**RUN, "SAMPLE_ORDER": "growing", **given})
    assert derived({**RUN, **given}).data.sample_order == "planned"
