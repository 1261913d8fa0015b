"""Some crafted inputs; thousands by hand: python -m benchmarks.fuzz --count 2000."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks import fuzz
from tests.data.samples.index_cache.test_damage import SEED


@pytest.mark.timeout(120)
def test_crafted_inputs_are_one_line_in_a_moment(tmp_path: Path):
    counts, findings = fuzz.fuzz(150, SEED, tmp_path)
    assert not findings, f"seed {SEED}"
    assert {name.split()[0] for name in counts} == {"of_run", "of_tokens", "of_list", "of_hf", "of_numbers"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_wrong_is_found(monkeypatch):
    from megads.monitor.run_state import runs

    monkeypatch.setattr(runs, "find_runs", lambda folder: [][1])
    assert fuzz.run(["runs", "."]).startswith("IndexError")
    assert "its input was not read" in fuzz.run(["runs", "--no-such-option"])
    monkeypatch.setattr(fuzz, "LIMIT_S", 0.2)
    monkeypatch.setattr(runs, "find_runs", lambda folder: iter(int, 1))
    assert fuzz.run(["runs", "."]) == "took more than 0.2 s"
    assert fuzz.mutate(random.Random(1), {"a": 1}) != {"a": 1}
