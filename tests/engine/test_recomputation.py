"""The native engine recomputes without a bit of difference, with dropout on; DeepSpeed: deepspeed/test_recompute.py."""

from __future__ import annotations

import math

import pytest

from tests.engine.deepspeed.test_recompute import BLOCK2, DROPOUT, GPT, SELECTIVE, UNIFORM3, same_bits
from tests.engine.plain import NATIVE
from tests.ranks import run_ranks

CASES = {
    "dp2-zero0": ({"data": 2}, {**GPT, "parallel.zero_stage": "0"}, [BLOCK2]),
    "dp2-zero1": ({"data": 2}, {**DROPOUT, "parallel.zero_stage": "1"}, [SELECTIVE, UNIFORM3]),
    "dp2-zero2": ({"data": 2}, {**GPT, "parallel.zero_stage": "2"}, [UNIFORM3]),
    "dp2-zero3": ({"data": 2}, {**DROPOUT, "parallel.zero_stage": "3"}, [SELECTIVE, UNIFORM3, BLOCK2]),
    "tp2-scattered": ({"tensor": 2}, {**GPT, "parallel.scatter_norms": "1"}, [SELECTIVE, UNIFORM3]),
    "sp2-zero3": ({"seq": 2}, {**GPT, "parallel.zero_stage": "3"}, [SELECTIVE, BLOCK2]),
    "tp2-bf16": ({"tensor": 2}, {**DROPOUT, "train.dtype": "bf16"}, [UNIFORM3]),
}


@pytest.mark.dist
@pytest.mark.parametrize("case", CASES)
def test_recomputation_changes_no_bit(case):
    grid, common, variants = CASES[case]
    run_ranks(math.prod(grid.values()), same_bits, grid, {**common, **NATIVE}, variants)
