"""`megads bench` on a simulated device: its parts run there, and the numbers are those of the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.made import bench_of, result_of
from tests.simgpu.device import DEVICE, ROW, run_on_device


def _parts(ranks: int) -> None:
    import torch

    from megads.bench import agreement, attention, collective_rates, matmul, memory_rates, training

    bench: Any = bench_of(ranks, vendor=ROW, device=torch.device(DEVICE))
    parts = {
        "numbers": agreement.measure,
        "attention": attention.measure,
        "matmul": matmul.measure,
        "memory": memory_rates.measure,
        "collectives": collective_rates.measure,
        "waits": training.measure_waits,
        "training": training.measure,
    }
    rows = {}
    for name, measure in parts.items():
        result = result_of(name)
        measure(bench, result)
        assert result.wrong == [], name
        rows[name] = result
    assert {row["dtype"] for row in rows["numbers"].rows} == {"fp32", "bf16", "fp16"}
    assert len(rows["memory"].rows) == 7, rows["memory"].notes
    assert rows["attention"].rows
    assert rows["matmul"].rows
    assert rows["waits"].notes == ["not applicable: torch has no sync debug mode for simulated"]
    assert [row["model"] for row in rows["training"].rows] == ["7B, 2 layers of 64"]
    assert bool(rows["collectives"].rows) == (ranks > 1)


@pytest.mark.dist
def test_the_parts_run_on_a_device():
    run_on_device(2, _parts, 2)
