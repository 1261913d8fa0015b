"""Whether torch compiles here is one small function, and what it says where it does not one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megads.models.kernels import probe

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def new_compiler():
    torch._dynamo.reset()


def test_what_compiles_and_is_right_has_no_reason():
    assert probe.why_not(CPU, "aot_eager") == ""


def test_wrong_code_is_a_reason():
    def wrong(graph: Any, example: Any) -> Any:
        return lambda x: (x,)

    assert probe.why_not(CPU, wrong) == f"its code gives {[1.0] * 8} for 3.0"


@pytest.mark.parametrize(("error", "line"), [(OSError("no disk\nand more"), "no disk"), (MemoryError(), "MemoryError")])
def test_what_the_compiler_raises_is_one_line(error, line):
    def broken(graph: Any, example: Any) -> Any:
        raise error

    assert probe.why_not(CPU, broken) == line
