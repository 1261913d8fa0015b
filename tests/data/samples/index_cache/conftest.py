from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from megads.data.samples.index_cache.cache import Cache


@pytest.fixture
def cache(tmp_path) -> Cache:
    return Cache(tmp_path / "cache" / "index")


@pytest.fixture
def lines(caplog, monkeypatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(logging.getLogger("megads"), "propagate", True)
    caplog.set_level(logging.INFO, "megads")
    return lambda: [record.getMessage() for record in caplog.records]


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
