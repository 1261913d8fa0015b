"""Requests without a seed draw the same tokens in every run: one in fifty would end a text at its first token."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="module", autouse=True)
def _fixed_entropy() -> Iterator[None]:
    import megads.inference.engine as engine

    numbers = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "secrets", SimpleNamespace(token_hex=lambda count: f"{next(numbers):0{2 * count}x}"))
        yield
