"""A record survives a manifest; what another version wrote counts as none."""

from __future__ import annotations

import json
import math

from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.function.record import KEY, Batch, Record, record_of
from tests.checkpoint.faked import fake

BATCH = Batch("tokens", ((1, 2, 3), (4, 5, 6)), 0)


def test_what_is_stored_is_read_again(tmp_path):
    record = Record({"rope_theta": 1e4, "bias": False}, BATCH).measured([2.5, 0.1 + 0.2], "bf16")
    about = {"megads": "9", "engine": "native", "other": "x", KEY: record.dump()}
    found = record_of(read_manifest(fake(tmp_path, 3, about=about)))
    assert found is not None
    assert (found.conventions, found.batch, found.losses) == (record.conventions, BATCH, (2.5, 0.1 + 0.2))
    assert found.made_with == {"megads": "9", "engine": "native"}
    assert found.loss == math.fsum([2.5, 0.1 + 0.2]) / 2


def test_losses_that_are_not_finite_are_not_stored():
    """NaN is no JSON, and says nothing about a function."""
    record = Record({"bias": False}, BATCH).measured([2.5, math.nan], "fp32")
    assert record.dump() == {"version": 1, "conventions": {"bias": False}}
    assert "NaN" not in json.dumps(record.dump())


def test_older_and_other_versions_have_none(tmp_path):
    assert record_of(read_manifest(fake(tmp_path / "a", 3))) is None
    assert record_of(read_manifest(fake(tmp_path / "b", 3, about={KEY: {"version": 2, "conventions": {}}}))) is None
    found = record_of(read_manifest(fake(tmp_path / "c", 3, about={KEY: {"version": 1, "conventions": {"a": 1}}})))
    assert found == Record({"a": 1})
    assert not found.is_replayable
