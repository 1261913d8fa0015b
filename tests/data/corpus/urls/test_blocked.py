"""The lists hold single words, endings with their dot."""

from __future__ import annotations

from megads.data.corpus.urls.blocked import DOMAINS, ENDINGS, PATH_ENDINGS


def test_lists():
    assert len(DOMAINS) == 110
    assert all(name == name.lower() and "." not in name for name in DOMAINS)
    assert len(set(ENDINGS)) == len(ENDINGS) == 65
    assert all(ending.startswith(".") for ending in (*ENDINGS, *PATH_ENDINGS))
