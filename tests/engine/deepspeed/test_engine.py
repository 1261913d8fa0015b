"""DeepSpeed builds nothing while a run waits for it. How it trains: tests/engine/test_training.py."""

from __future__ import annotations

import os

import pytest

from tests.engine.plain import make_engine, settings, train
from tests.ranks import groups_of, run_ranks


def _nothing_is_compiled(folder: str) -> None:
    os.environ["TORCH_EXTENSIONS_DIR"] = folder
    grid = {"data": 2}
    train(make_engine(settings(grid), groups_of(**grid)), settings(grid), groups_of(**grid))
    assert os.listdir(folder) == []


@pytest.mark.dist
def test_nothing_is_compiled_at_run_time(tmp_path):
    run_ranks(2, _nothing_is_compiled, str(tmp_path))
