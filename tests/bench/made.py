"""A benchmark on a rank of a pool, or in this process, without a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megads.bench.budget import Budget
from megads.bench.parts import PARTS
from megads.bench.results import PartResult

ROOT = Path(__file__).parents[2]


def bench_of(ranks: int = 1, total_s: float = 600.0, **changes: Any) -> Any:
    """Return the benchmark of this rank of ``ranks``, tiny, on the CPU."""
    import torch

    from megads.bench.session import Bench
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.device.vendor import vendor
    from tests.ranks import groups_of

    groups = groups_of(data=ranks) if ranks > 1 else Groups(Grid(), 0)
    budget = Budget(total_s, {part.name: part.weight for part in PARTS})
    given = {
        "vendor": vendor({"MEGADS_DEVICE": "cpu"}),
        "device": torch.device("cpu"),
        "groups": groups,
        "hosts": ("a",) * ranks,
        "budget": budget,
        "root": ROOT,
        "is_tiny": True,
        **changes,
    }
    return Bench(**given)


def result_of(name: str) -> PartResult:
    """Return an empty result of the part ``name``."""
    return next(part for part in PARTS if part.name == name).result()
