"""The state of every optimizer goes from any layout to any other through a checkpoint; in the same one bit for bit."""

import pytest

from tests.engine.optim.test_build import HERE, SETTINGS, WAIT, WHOLE
from tests.parity.layouts import Layout
from tests.ranks import run_ranks

BEFORE, AFTER = 3, 7
PIECES = {"deepspeed.param_persistence_threshold": "0"}
CHANGES = [
    (Layout(tp=2, zero=1), Layout(tp=2, zero=1)),
    (Layout(tp=2, zero=1), Layout(dp=2, zero=0)),
    (Layout(dp=2, zero=2), Layout(pp=2, zero=1)),
]
ACROSS = [
    (Layout(dp=2, zero=1), Layout(dp=2, zero=1).on("native")),
    (Layout(dp=2, zero=3).on("native"), Layout(tp=2, zero=0)),
    (Layout(tp=2, zero=1), Layout(dp=2, zero=0).on("native")),
    (Layout(dp=2, zero=2).on("native"), Layout(dp=2, zero=2)),
]
"""From one engine to the other; each optimizer takes two of them."""
SAME = [
    Layout(dp=2, zero=1),
    Layout(dp=2, zero=0),
    Layout(dp=2, zero=3, more=PIECES),
    Layout(dp=2, zero=1, more={"train.dtype": "bf16"}),
    Layout(pp=2, zero=1),
]
CASES = [
    *((name, SAME[0]) for name in [*HERE, "sophiag"]),
    *((name, layout) for name in ("adamwschedulefree", "sophiag", "muon", "galoreadamw") for layout in SAME[1:]),
    *((name, SAME[i].on("native")) for i, name in enumerate(("adamwschedulefree", "sophiag", "muon", "galoreadamw"))),
]
OFTEN = {"optim.soap_interval": "2", "optim.shampoo_interval": "2", "optim.galore_interval": "4"}


def goes_on(before: Layout, after: Layout, name: str, folder) -> None:
    from megads.checkpoint.resume.progress import Progress
    from tests.engine.scripted import Scripted, reference
    from tests.parity.checkpoints import load, save

    changes = {"optim.optimizer": name, **SETTINGS, **OFTEN}
    first = Scripted(before, **changes)
    first.train(BEFORE)
    path = save(first.engine, first.run, first.groups, folder, Progress(iteration=BEFORE))
    second = Scripted(after, **changes)
    load(second.engine, second.groups, path)
    second.step = BEFORE
    second.train(AFTER)
    if before == after:
        first.train(AFTER)
        for mine, other in zip(first.engine.state.by_parameter(), second.engine.state.by_parameter(), strict=True):
            for kind, tensor in mine.tensors.items():
                assert tensor.equal(other.tensors[kind]), (mine.name, kind)
        for (name, mine), (_, other) in zip(
            first.engine.state.whole_states(), second.engine.state.whole_states(), strict=True
        ):
            for key, value in mine.items():
                assert value.equal(other[key]) if hasattr(value, "equal") else value == other[key], (name, key)
        assert first.engine.state.scalars() == second.engine.state.scalars()
    else:
        worst = max(second.differences(reference(after.kind, AFTER, **changes)), key=lambda each: each[1])
        assert worst[1] <= 1e-6, worst


@pytest.mark.dist
@pytest.mark.parametrize(
    ("name", "layouts"),
    # In the same layout once more below, with every optimizer.
    [
        (name, pair)
        for name in [*HERE, "sophiag"]
        for pair in CHANGES
        if pair[0] != pair[1] or name in (*WHOLE, "adamw")
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}-{value[1]}",
)
def test_it_goes_on_in_another_layout(name, layouts, tmp_path):
    run_ranks(2, goes_on, *layouts, name, tmp_path, timeout_s=WAIT)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("name", "layouts"),
    [(name, ACROSS[(number + i) % 4]) for number, name in enumerate([*HERE, "sophiag"]) for i in range(2)],
    ids=lambda value: value if isinstance(value, str) else f"{value[0]}-{value[1]}",
)
def test_it_goes_on_under_the_other_engine(name, layouts, tmp_path):
    run_ranks(2, goes_on, *layouts, name, tmp_path, timeout_s=WAIT)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(("name", "layout"), CASES, ids=str)
def test_it_goes_on_as_if_it_had_never_stopped(name, layout, tmp_path):
    run_ranks(2, goes_on, layout, layout, name, tmp_path, timeout_s=WAIT)
