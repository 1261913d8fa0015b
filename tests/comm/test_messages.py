"""Values that ranks tell each other: JSON, and nothing in the package that makes pickles of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch.distributed as dist

from megads.comm.messages import all_gather_values, broadcast_value, gather_values
from tests.ranks import run_ranks

PACKAGE = Path(__file__).parents[2] / "megads"


def check_values() -> None:
    rank = dist.get_rank()
    mine = {"rank": rank, "text": "\u00e9" * (rank * 1000), "more": [1.5, None, True, float("inf")]}
    every = [{**mine, "rank": each, "text": "\u00e9" * (each * 1000)} for each in range(3)]
    assert broadcast_value(mine if rank == 1 else None, src=1) == every[1]
    assert all_gather_values(mine) == every
    assert gather_values(mine) == (every if rank == 0 else [])
    assert broadcast_value("") == ""
    assert gather_values(None, dst=2) == ([None] * 3 if rank == 2 else [])


@pytest.mark.dist
def test_values_of_all_lengths_arrive():
    run_ranks(3, check_values)


def test_ranks_tell_each_other_no_pickles():
    makes = re.compile(r"_object\b|_object_list\b|\bpickle\b(?!s)")
    allowed = {"data/indexed/base.py", "checkpoint/trust.py"}  # of worker processes of one host, and about files
    found = {
        str(path.relative_to(PACKAGE)): line.strip()
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if makes.search(line) and not line.strip().startswith("#")
    }
    assert {name: line for name, line in found.items() if name not in allowed} == {}
