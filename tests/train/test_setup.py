"""What a rank needs before it trains: its place among those that build indices, and what its data asks for."""

from __future__ import annotations

from types import SimpleNamespace

from megads.train.setup import end_of_document, timed
from tests.engine.plain import settings


def test_the_end_of_a_document_is_looked_up_where_a_setting_needs_it(monkeypatch):
    monkeypatch.setattr("megads.train.setup.load_tokenizer", lambda run: SimpleNamespace(eod=7))
    assert end_of_document(settings({})) is None
    assert end_of_document(settings({}, **{"data.reset_position_ids": "true"})) == 7


def test_a_block_is_timed():
    timings: dict[str, float] = {}
    with timed(timings, "data"):
        assert timings == {}
    assert 0 <= timings["data"] < 10
