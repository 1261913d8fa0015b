"""Learning rate and weight decay against values worked out by hand from Megatron's rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megads.config.schedule.rates import INFINITE, Rates, Schedule, WeightDecay
from megads.config.schedule.rates import Schedule as ScheduleOfTheLoop
from tests.checkpoint.faked import derived

# Warm-up of 20 samples to 1, decay to 0.1 at sample 120; wsd cools over the last 40. At a quarter of a
# cosine sqrt(1/2) is left of -1..1, so 0.1 + 0.9 (1 + 0.70710678...) / 2 of the rate.
QUARTER_OF_COSINE = 0.868198051533946
WARMING = {0: 0.0, 5: 0.25, 19: 0.95, 20: 1.0}
TABLE = {
    "constant": {**WARMING, 21: 1.0, 119: 1.0, 120: 1.0, 121: 1.0, 1000: 1.0},
    "linear": {**WARMING, 21: 0.991, 45: 0.775, 70: 0.55, 119: 0.109, 120: 0.1, 121: 0.1, 1000: 0.1},
    "cosine": {
        **WARMING,
        **{21: 0.9997779521645792, 45: QUARTER_OF_COSINE, 70: 0.55, 119: 0.1002220478354208, 120: 0.1, 121: 0.1},
    },
    # sqrt(20 / samples) until the decay ends
    "inverse-square-root": {
        **WARMING,
        **{21: 0.9759000729485332, 45: 2 / 3, 80: 0.5, 119: 0.40996003084539, 120: 0.408248290463863, 121: 0.1},
    },
    # 1 - sqrt(1/40), 1 - sqrt(1/4), 1 - sqrt(39/40) of the fall are left
    "wsd": {
        **WARMING,
        **{21: 1.0, 79: 1.0, 80: 1.0, 81: 0.857697505292423, 90: 0.55, 119: 0.111321205384083, 120: 0.1, 121: 0.1},
    },
}
SHAPES = {
    "linear": {80: 1.0, 81: 0.9775, 90: 0.775, 100: 0.55, 119: 0.1225, 120: 0.1, 121: 0.1},
    "cosine": {80: 1.0, 90: QUARTER_OF_COSINE, 100: 0.55, 110: 0.231801948466054, 120: 0.1, 121: 0.1},
    # left are the powers of two of 3/4, 1/2 and 1/4, each less 1
    "exponential": {
        **{80: 1.0, 90: 0.713613547456686, 100: 0.472792206135785, 110: 0.270286403502449},
        **{120: 0.1, 121: 0.1},
    },
}
# Peak 1, constant 1/2 from sample 60 to 80, then 4 ** -x of it to 1/8 at 120.
FALLING = {60: 0.5, 61: 0.5, 79: 0.5, 80: 0.5, 81: 0.482968164462422, 90: 0.353553390593274, 100: 0.25}
ENDED = {119: 0.129408115480172, 120: 0.125, 121: 0.125, 1000: 0.125}
INFINITES = {
    "infinite-cosine": {20: 1.0, 21: 0.999229333433282, 30: 0.926776695296637, 40: 0.75, 59: 0.500770666566718},
    # with a time scale of 3: (1 / sqrt(1 + 3 x) - 1/2) / (1 - 1/2) is left
    "infinite-inverse-square-root": {20: 1.0, 21: 0.964485644340824, 30: 0.755928946018454, 40: 0.632455532033676},
}


def schedule(style: str, *, warmup: float = 20, decay: int = 120, **more) -> Schedule:
    return Schedule(1.0, 0.1, warmup, decay, style, cooldown_samples=40, **more)


def infinite(style: str) -> Schedule:
    parts = {"cooldown_samples": 40, "constant_lr": 0.5, "constant_samples": 20, "timescale": 3.0}
    return Schedule(1.0, 0.125, 20, 120, style, **parts)


def rates(made: Schedule, table: dict[int, float]) -> dict[int, float]:
    return {samples: made.lr(samples) for samples in table}


@pytest.mark.parametrize("style", TABLE)
def test_rates_of_a_style(style):
    assert rates(schedule(style), TABLE[style]) == pytest.approx(TABLE[style], rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_rates_of_a_cool_down(shape):
    made = schedule("wsd", cooldown_style=shape)
    assert rates(made, SHAPES[shape]) == pytest.approx(SHAPES[shape], rel=1e-12)


@pytest.mark.parametrize("style", INFINITE)
def test_rates_of_an_infinite_schedule(style):
    table = {**WARMING, **INFINITES[style], **FALLING, **ENDED}
    assert rates(infinite(style), table) == pytest.approx(table, rel=1e-12)


def test_a_warm_up_may_begin_above_zero():
    made = schedule("linear", init_lr=0.2)
    assert rates(made, {0: 0, 5: 0, 20: 0}) == pytest.approx({0: 0.2, 5: 0.4, 20: 1.0})


@pytest.mark.parametrize("style", [*TABLE, *INFINITE])
def test_without_warmup_the_first_step_has_the_full_rate(style):
    made = Schedule(1.0, 0.1, 0, 120, style, cooldown_samples=40, constant_lr=0.5, constant_samples=20)
    assert made.lr(0) == 1.0


def test_an_inverse_square_root_does_not_fall_below_the_smallest_rate():
    made = schedule("inverse-square-root", decay=5000)
    assert rates(made, {1280: 0, 1999: 0, 2000: 0, 2001: 0, 5001: 0}) == pytest.approx(
        {1280: 0.125, 1999: 0.10002500937929, 2000: 0.1, 2001: 0.1, 5001: 0.1}, rel=1e-9
    )


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("constant", {0: 0.5, 50: 0.5, 100: 0.5, 101: 0.5}),
        ("linear", {0: 0.1, 1: 0.104, 25: 0.2, 50: 0.3, 99: 0.496, 100: 0.5, 101: 0.5}),
        ("cosine", {0: 0.1, 25: 0.158578643762690, 50: 0.3, 75: 0.441421356237310, 100: 0.5, 101: 0.5}),
    ],
)
def test_weight_decay(style, expected):
    made = WeightDecay(0.1, 0.5, 100, style)
    assert {samples: made.at(samples) for samples in expected} == pytest.approx(expected, rel=1e-12)


def test_weight_decay_goes_over_the_whole_run_and_may_fall():
    env = {"WEIGHT_DECAY_INCR_STYLE": "linear", "START_WEIGHT_DECAY": "0.3", "LR_DECAY_ITERS": "6", "WEIGHT_DECAY": "0"}
    made = Schedule.of(derived(env))  # 12 steps of 8 samples; END_WEIGHT_DECAY is WEIGHT_DECAY
    assert made.at(48) == Rates(pytest.approx(0.0, abs=1e-18), pytest.approx(0.15))
    assert made.weight_decay == WeightDecay(0.3, 0.0, 96, "linear")
    assert Schedule.of(derived(WEIGHT_DECAY="0.2")).at(77).weight_decay == 0.2


def test_weight_decay_has_a_length_of_its_own_in_any_unit():
    env = {"WEIGHT_DECAY_INCR_STYLE": "linear", "START_WEIGHT_DECAY": "0.3", "WEIGHT_DECAY": "0"}
    lengths = {"WEIGHT_DECAY_ITERS": "6", "WEIGHT_DECAY_SAMPLES": "48", "WEIGHT_DECAY_TOKENS": str(48 * 32)}
    found = [Schedule.of(derived({**env, name: value})) for name, value in lengths.items()]
    assert [each.weight_decay for each in found] == [WeightDecay(0.3, 0.0, 48, "linear")] * 3
    assert [each.at(24).weight_decay for each in found] == [pytest.approx(0.15)] * 3
    # Steps of a ramp are as large as they are: 2 x 4 and 4 x 8 samples.
    ramp = Schedule.of(derived({**env, "RAMPUP_BATCH_SIZE": "4 4 8", "WEIGHT_DECAY_ITERS": "6"}))
    assert ramp.weight_decay.samples == 2 * 4 + 4 * 8


# A checkpoint of step 92,400 cools for 2,000 steps, as in facts of the family's generator: the whole is 94,400
# steps, of which 2000/94400 cools. Given what stays constant, as that generator does, it would cool from step
# 2,000 on, and 1 - sqrt(90400/92400) of the fall from 2e-4 to 2e-5 would be left.
COOL = {"LR": "2e-4", "MIN_LR": "2e-5", "LR_DECAY_STYLE": "wsd", "TRAIN_ITERS": "94400", "LR_WARMUP_FRAC": "0"}


def test_the_fraction_that_is_given_is_what_cools():
    made = Schedule.of(derived(COOL, COOLDOWN=str(2000 / 94400)))
    assert made.lr(92_400 * 8) == 2e-4
    assert made.lr(92_400 * 8 + 1) < 2e-4
    assert made.lr((92_400 + 500) * 8) == pytest.approx(1.1e-4, rel=1e-12)
    assert made.lr(94_400 * 8) == pytest.approx(2e-5, rel=1e-12)
    assert made == Schedule.of(derived(COOL, LR_COOLDOWN_ITERS="2000"))
    inverted = Schedule.of(derived(COOL, COOLDOWN=str(92400 / 94400)))
    assert inverted.lr(92_400 * 8) == pytest.approx(2.196e-5, rel=1e-4)


def test_rounded_fractions_cool_from_nearly_there():
    assert Schedule.of(derived(COOL, COOLDOWN="0.0212")).lr(92_400 * 8) == pytest.approx(2e-4, rel=0.03)


ONE_LENGTH = [
    {"LR_DECAY_ITERS": "10", "LR_WARMUP_ITERS": "2", "LR_COOLDOWN_ITERS": "3"},
    {"LR_DECAY_SAMPLES": "80", "LR_WARMUP_SAMPLES": "16", "LR_COOLDOWN_SAMPLES": "24"},
    {"LR_DECAY_TOKENS": "2560", "LR_WARMUP_TOKENS": "512", "LR_COOLDOWN_TOKENS": "768"},
    {"LR_DECAY_ITERS": "10", "LR_WARMUP_FRAC": "0.2", "COOLDOWN": "0.3"},
    {
        "LR_DECAY_ITERS": "10",
        "LR_DECAY_SAMPLES": "80",
        "LR_WARMUP_ITERS": "2",
        "LR_WARMUP_FRAC": "0.2",
        "COOLDOWN": ".3",
    },
]


@pytest.mark.parametrize("env", ONE_LENGTH)
def test_lengths_in_every_unit(env):
    run = derived(env, LR_DECAY_STYLE="wsd")  # 8 samples a step, 32 tokens a sample
    made = Schedule.of(run)
    assert (made.warmup_samples, made.decay_samples, made.cooldown_samples) == (16, 80, 24)
    assert run.optim.lr_decay_iters == 10
    assert made.borders() == {"warm-up": 16, "constant": 56, "decay": 80}


def test_a_fraction_need_not_be_whole_samples():
    assert Schedule.of(derived(LR_WARMUP_FRAC="0.1")).warmup_samples == pytest.approx(9.6)
    assert Schedule.of(derived(LR_DECAY_TOKENS="1000")).decay_samples == 31.25


# Steps of 4 samples until 20, of 8 until 44, of 12 until 68, of 16 from there on: 20 steps are 228 samples.
RAMP = {"GLOBAL_BATCH": "16", "TRAIN_ITERS": "20", "RAMPUP_BATCH_SIZE": "4 4 60", "LR": "0.5", "MIN_LR": "0.1"}


@pytest.mark.parametrize(
    ("env", "parts"),
    [
        ({"LR_WARMUP_ITERS": "6", "LR_DECAY_ITERS": "20"}, (28, 228, 0, 0)),
        ({"LR_WARMUP_SAMPLES": "30", "LR_DECAY_ITERS": "10"}, (30, 68, 0, 0)),
        ({"LR_WARMUP_FRAC": "0.25"}, (57, 228, 0, 0)),
        ({"LR_WARMUP_ITERS": "6", "LR_DECAY_STYLE": "wsd", "LR_COOLDOWN_ITERS": "4"}, (28, 228, 64, 0)),
        # the last 13 of 20 steps begin after 7: 5 of 4 and 2 of 8 samples
        ({"LR_WARMUP_ITERS": "6", "LR_DECAY_STYLE": "wsd", "LR_COOLDOWN_ITERS": "13"}, (28, 228, 192, 0)),
        # behind 28 samples come steps of 8, 8, 12, 12, and then of 16
        (
            {"LR_WARMUP_ITERS": "6", "LR_COOLDOWN_ITERS": "4", "LR_CONSTANT_ITERS": "3", "LR_DECAY_STYLE": INFINITE[0]},
            (28, 228, 40, 48),
        ),
    ],
)
def test_iterations_are_the_samples_they_take_while_the_batch_grows(env, parts):
    made = Schedule.of(derived(RAMP, **env))
    assert (made.warmup_samples, made.decay_samples, made.cooldown_samples, made.constant_samples) == parts


def test_rates_while_the_batch_grows():
    made = Schedule.of(derived(RAMP, LR_WARMUP_ITERS="6", LR_DECAY_STYLE="linear"))
    # Step 7 begins at sample 28, the end of the warm-up; step 11 at 68, with a fifth of the fall done.
    assert [made.lr(samples) for samples in (0, 4, 20, 28, 68, 228)] == pytest.approx(
        [0.0, 0.5 / 7, 2.5 / 7, 0.5, 0.42, 0.1]
    )


def test_the_loop_has_the_same_schedule():
    assert ScheduleOfTheLoop is Schedule


STYLES = st.sampled_from([*TABLE, *INFINITE])
SHARE = st.floats(0.01, 0.3)


@given(
    STYLES, st.sampled_from(["sqrt", "linear", "cosine", "exponential"]), SHARE, SHARE, SHARE, st.integers(10**5, 10**9)
)
def test_rates_stay_within_their_bounds_and_do_not_jump(style, shape, warmup, cooldown, constant, decay):
    made = Schedule(
        *(1.0, 0.1, warmup * decay, decay, style),
        cooldown_samples=cooldown * decay,
        cooldown_style=shape,
        constant_lr=0.4,
        constant_samples=constant * decay,
    )
    for name, border in made.borders().items():
        before, after = made.lr(int(border)), made.lr(int(border) + 1)
        assert 0.0999 < after <= 1.0
        # The root is steep where it begins; the inverse root is cut off at the end, as Megatron-LM does.
        steep = 1.1 / (cooldown * decay) ** 0.5 if shape == "sqrt" and style == "wsd" else 0.0
        if not (style == "inverse-square-root" and name == "decay"):
            assert abs(after - before) <= max(steep, 600 / decay)
    assert made.lr(0) == 0.0
    assert 0 < made.lr(1) <= 1.0
