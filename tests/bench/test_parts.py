"""The parts by name, and that every row has what its table shows."""

from __future__ import annotations

import pytest

from megads.bench.parts import PARTS, chosen
from megads.errors import ConfigError


def test_correctness_comes_first():
    assert PARTS[0].name == "numbers"


def test_parts_are_chosen_by_name_in_their_own_order():
    assert chosen("") == PARTS
    assert [part.name for part in chosen("training, numbers")] == ["numbers", "training"]
    with pytest.raises(ConfigError, match=r"--parts a,matmul: 'a' is not one of numbers, attention, matmul"):
        chosen("a,matmul")
