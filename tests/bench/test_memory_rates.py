"""Bandwidths count every buffer that is read or written."""

from __future__ import annotations

from megads.bench.memory_rates import BYTES, measure, patterns
from tests.bench.made import bench_of, result_of


def test_every_pattern_has_a_row():
    bench, result = bench_of(), result_of("memory")
    bench.seconds = lambda call: (call(), 1e-3)[1]  # type: ignore[method-assign]
    measure(bench, result)
    rates = {row["pattern"]: row["gb_per_s"] for row in result.rows}
    once = BYTES["tiny"] / 1e-3 / 1e9
    assert rates == {"fill": once, "copy": 2 * once, "add (triad)": 3 * once}


def test_a_device_is_also_measured_to_and_from_the_host():
    import torch

    bench = bench_of()
    bench.device = torch.device("meta")
    assert [name for name, _, _ in patterns(bench, 64)][3:] == [
        "host to device, pinned",
        "host to device, pageable",
        "device to host, pinned",
        "device to host, pageable",
    ]


def test_what_has_no_time_is_dropped_with_a_line():
    bench, result = bench_of(total_s=0.0), result_of("memory")
    bench.budget.begin("memory")
    measure(bench, result)
    assert (result.rows, result.status, result.notes[0]) == ([], "partial", "fill dropped: no time left")
