"""The schedule before a run: its curves, its table, its picture."""

import pytest

from megads.monitor.plots.schedule import Curves, render_schedule, schedule_table, sketch_schedule
from tests.checkpoint.faked import derived
from tests.monitor.plots.test_picture import overlapping

RAMP = {"GLOBAL_BATCH": "16", "TRAIN_ITERS": "20", "RAMPUP_BATCH_SIZE": "4 4 60", "LR": "0.5", "LR_WARMUP_ITERS": "6"}


def test_curves_are_what_the_steps_will_use():
    curves = Curves.of(derived(RAMP, LR_DECAY_STYLE="wsd", LR_COOLDOWN_ITERS="4"))
    assert curves.steps == list(range(1, 21))
    # Steps of 4 samples until 20, of 8 until 44, of 12 until 68, then of 16; 32 tokens a sample.
    assert curves.batch == [4] * 5 + [8] * 3 + [12] * 2 + [16] * 10
    assert [curves.tokens[step - 1] for step in (1, 2, 7, 11, 20)] == [0, 128, 28 * 32, 68 * 32, 212 * 32]
    assert [curves.lr[step - 1] for step in (1, 2, 7, 17)] == pytest.approx([0.0, 0.5 / 7, 0.5, 0.5])
    # The last of four steps that cool begins with three quarters of them done: 1 - sqrt(3/4) is left.
    assert curves.lr[19] == pytest.approx(0.5 * 0.133974596215561)
    assert curves.borders == {"warm-up": 7.0, "constant": 17.0, "decay": 21.0}


def test_a_long_run_has_few_points_and_all_of_its_borders():
    curves = Curves.of(derived(TRAIN_ITERS="1000000", LR_WARMUP_ITERS="77", LR_DECAY_ITERS="500001"))
    assert len(curves.steps) < 1100
    assert {1, 77, 78, 79, 500_001, 500_002, 500_003, 1_000_000} <= set(curves.steps)
    assert max(curves.lr) == curves.lr[curves.steps.index(78)] == 2e-4
    assert curves.lr[-1] == 0.0


def test_sketch_and_table():
    run = derived(RAMP, WEIGHT_DECAY_INCR_STYLE="linear", START_WEIGHT_DECAY="0", LR_DECAY_STYLE="linear")
    text = sketch_schedule(Curves.of(run))
    assert [line for line in text.splitlines() if line in ("learning rate", "weight decay", "batch")] == [
        *("learning rate", "weight decay", "batch")
    ]
    assert "weight decay" not in sketch_schedule(Curves.of(derived()))
    rows = [line.split() for line in schedule_table(run).splitlines()]
    assert rows[2] == ["warm-up", "6", "28", "896", "0.5", "0.0122807"]
    assert rows[-1] == ["run", "20", "228", "7,296", "0", "0.1"]


@pytest.mark.parametrize("env", [{"TRAIN_ITERS": "1"}, {"LR": "0"}, {"WEIGHT_DECAY": "0"}, RAMP])
def test_every_run_has_a_picture_without_texts_over_each_other(env):
    assert overlapping(render_schedule(Curves.of(derived(env)), "a run")) == []


def test_phases_are_shaded_with_their_names_in_the_middle():
    run = derived(TRAIN_ITERS="200", LR_WARMUP_ITERS="6", LR_DECAY_STYLE="wsd", LR_COOLDOWN_ITERS="40")
    top = render_schedule(Curves.of(run), "a run").axes[0]
    assert [(patch.get_x(), patch.get_width()) for patch in top.patches] == [(1, 6), (7, 154), (161, 40)]
    places = {text.get_text(): text.get_position()[0] for text in top.texts}
    assert (places["constant"], places["decay"]) == (84, 181)
    assert [text.get_text() for text in top.get_legend().get_texts()] == ["warm-up"]  # too short for its name
