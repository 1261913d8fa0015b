"""The best layout on numbers of hosts, and the smallest number on which a model fits."""

from __future__ import annotations

from megads.config.sources.resolve import resolve
from megads.plan.places.place import place_of
from megads.plan.search.ask import Ask
from megads.plan.search.hosts import counts, smallest, sweep
from megads.plan.search.search import has_fit

H100 = place_of("h100")


def _ask_of(preset, **env):
    def ask(hosts):
        resolved = resolve(preset, env={**env, "NHOSTS": str(hosts)}, machine="generic", num_hosts=hosts)
        return Ask(resolved, H100, hosts, 8)

    return ask


def test_the_batch_is_the_same_in_all_rows_and_more_hosts_are_faster():
    rows = sweep(_ask_of("7B", GLOBAL_BATCH="64", NLAYERS="8"), [1, 2, 4])
    assert {row.best.run.train.global_batch for row in rows} == {64}
    speeds = [row.best.time.tokens_per_s * row.ask.world_size for row in rows]
    assert speeds == sorted(speeds)


def test_a_row_without_a_layout_says_why():
    (row,) = sweep(_ask_of("70B", GLOBAL_BATCH="64"), [1])
    assert row.best is None
    assert row.problem == "does not fit"


def test_the_smallest_number_of_hosts_fits_and_a_quarter_less_does_not():
    ask_of = _ask_of("33B", GLOBAL_BATCH="96")
    assert not has_fit(ask_of(1))
    row = smallest(ask_of, 1)
    assert row.best.memory.total <= row.ask.limit_bytes
    assert not has_fit(ask_of(row.ask.num_hosts - 1)) or row.ask.num_hosts == 2
    assert smallest(ask_of, 1, most=1) is None


def test_a_table_has_powers_of_two_up_to_the_place():
    assert counts(place_of("h100"))[-1] == 512
    assert all(number & (number - 1) == 0 for number in counts(place_of("a100")))
