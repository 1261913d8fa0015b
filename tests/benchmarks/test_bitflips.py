"""A hundred bits of a finished run, of every kind of file; by hand: python -m benchmarks.bitflips --count 1000."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from benchmarks.bitflips import Lines, flip_all, kinds_of, make_run, outcome_of, unknown_files
from megads.errors import DataError
from tests.data.samples.index_cache.test_damage import SEED


@pytest.fixture
def quiet():
    log = logging.getLogger("megads")
    before = (log.handlers, log.propagate)
    yield
    log.handlers, log.propagate = before


def test_no_flipped_bit_of_a_run_is_silent(tmp_path: Path, quiet):
    run_dir, prefix = make_run(tmp_path)
    kinds = kinds_of(run_dir, prefix)
    assert not unknown_files(run_dir, kinds)
    (run_dir / "new.json").write_text("{}")
    assert unknown_files(run_dir, kinds) == [run_dir / "new.json"]
    table = flip_all(kinds, 100, SEED)
    assert not table.wrong, f"seed {SEED}"
    found = {name: set(counts) for name, counts in table.counts.items()}
    assert len(found) == 11
    assert all(found[name] == {"detected"} for name in ("tensors", "manifest", "metrics", ".bin", ".idx"))
    assert found["attempts"] <= {"detected", "repaired"}  # an end is filled from what the run left
    assert found["index cache"] == {"repaired"}


def test_the_table_calls_things_what_they_are():
    lines = Lines()

    def refused() -> int:
        raise DataError("x")

    assert outcome_of(refused, 1, lines) == "detected"
    assert outcome_of(lambda: 1 // 0, 1, lines).startswith("TRACEBACK ZeroDivisionError")
    assert [outcome_of(lambda: 1, each, lines) for each in (1, 2)] == ["harmless", "SILENT"]
    lines.said = ["made again"]
    assert [outcome_of(lambda: 1, each, lines) for each in (1, 2)] == ["repaired", "detected"]
