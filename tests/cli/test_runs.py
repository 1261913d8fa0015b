"""``megads runs``: its columns, what a narrow terminal drops, the order, and the speed."""

import pytest

from megads.cli.runs import coloured, ordered, table
from megads.monitor.run_state.runs import RunFacts, facts_of
from tests.monitor.plots.made import make_run, rows_of

RUNS = [
    RunFacts("runs/a", "done", step=9, total=9, loss=2.5, valid_loss=2.6, tokens_per_s=1e4, lr=3e-4, optimizer="muon"),
    RunFacts("runs/b", "failed", "why", step=5, total=9, loss=2.0, tokens_per_s=2e4, tokens=5e6, lr=1e-3),
    RunFacts("runs/c", "not started"),
]


@pytest.mark.parametrize(
    ("sort", "order"),
    [("name", "abc"), ("loss", "bac"), ("tok/s", "bac"), ("step", "abc"), ("state", "abc"), ("lr", "abc")],
)
def test_the_order_and_runs_without_a_value_last(sort, order):
    assert [run.path[-1] for run in ordered(RUNS, sort)] == list(order)


def test_columns_go_by_their_weight():
    wide, narrow = table(RUNS, 200)[0].split(), table(RUNS, 45)[0].split()
    assert {"lr", "optimizer", "tokens"} <= {*wide}
    assert narrow[:3] == ["run", "state", "step"]
    assert "optimizer" not in narrow
    assert max(map(len, table(RUNS, 45))) <= 45


def test_states_have_colours():
    lines = coloured(table(RUNS, None), RUNS)
    assert "\x1b[31mfailed" in lines[2]


def test_the_speed_is_the_median_of_the_last_fifty_steps(tmp_path):
    rows = rows_of(80, every=999)
    for row in rows:
        row["tokens_per_s"] = float(row["iteration"])
    make_run(tmp_path / "r", rows, LR="3e-4")
    found = facts_of(tmp_path / "r")
    assert found.tokens_per_s == 55.5
    assert (found.lr, found.tokens) == (3e-4, 80 * 8 * 2048)
