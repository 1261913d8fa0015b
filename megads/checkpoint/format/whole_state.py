"""State of an optimizer that belongs to a parameter as a whole and has shapes of its own. No torch.

Preconditioners, projections, moments in 8 bits: they are not cut as the parameter is. The rank that
steps the parameter writes them to its file under ``state/<parameter>/<key>``, and the manifest says
where they are; the rank that steps it in another layout reads them whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STATES = "state/"
"""What the keys of such tensors begin with."""

TYPES = ("F32", "U8")
LARGEST = 1 << 40
"""Of a side; no memory holds more."""


@dataclass(frozen=True)
class WholeParamState:
    """What an optimizer keeps of one parameter."""

    rank: int  # whose file has the tensors
    tensors: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # key -> type in the file, shape
    numbers: Mapping[str, float | int | bool | None] = field(default_factory=dict)  # key -> what is not a tensor

    def dump(self) -> dict[str, Any]:
        """Return the JSON object of the manifest."""
        tensors = {key: [dtype, list(shape)] for key, (dtype, shape) in self.tensors.items()}
        return {"rank": self.rank, "tensors": tensors, "numbers": dict(self.numbers)}

    @staticmethod
    def parse(content: Any) -> WholeParamState:
        """Return what :meth:`dump` gave; ValueError, KeyError or TypeError when it is something else."""
        rank, numbers = content["rank"], content["numbers"]
        if type(rank) is not int or rank < 0 or not isinstance(numbers, dict):
            raise ValueError(f"{content!r:.40} where the state of a parameter belongs")
        if any(not isinstance(each, (int, float, type(None))) for each in numbers.values()):
            raise ValueError(f"{numbers!r:.40} is not a list of numbers")
        tensors, shapes = {}, content["tensors"]
        if not isinstance(shapes, dict):
            raise ValueError(f"{shapes!r:.40} where tensors belong")
        for key, (dtype, shape) in shapes.items():
            if not isinstance(shape, list) or any(type(size) is not int or not 0 <= size < LARGEST for size in shape):
                raise ValueError(f"{shape!r:.40} where a shape belongs")
            if dtype not in TYPES:
                raise ValueError(f"{[dtype, shape]!r:.40} where a type belongs")
            tensors[key] = (dtype, tuple(shape))
        return WholeParamState(rank, tensors, numbers)

    def counts(self, name: str) -> dict[str, int]:
        """Return the keys of parameter ``name`` in the file of :attr:`rank`, and how many elements each has."""
        return {f"{STATES}{name}/{key}": math.prod(shape) for key, (_, shape) in self.tensors.items()}
