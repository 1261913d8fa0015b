"""The report says what was dropped and why, the most frequent reason first."""

from __future__ import annotations

import json

from megads.data.corpus.frame.job import CorpusJob
from megads.data.corpus.frame.report import as_text, summarise
from megads.data.corpus.lines import Merge
from megads.data.preprocess.input.files import Source
from megads.data.preprocess.output import Point


def test_report():
    job = CorpusJob((Source("a", "plain", 99, 0),), Merge(), "out", "gone")
    total = Point(documents=1200, text_bytes=90, bad=2, bad_lines=("a:1 x", "a:2 y"))
    counts = {
        "kept": 1000,
        "changed": 3,
        "dropped/short": 50,
        "dropped_bytes/short": 7,
        "dropped/language": 150,
        "z": 4,
    }
    found = summarise(job, total, counts, 80)
    assert found.line == "out  # kept 1,000 of 1,200 documents, changed 3; dropped 200: language 150, short 50"
    assert json.loads(as_text(found)) == {
        "command": "merge",
        "options": {},
        "inputs": [{"path": "a", "bytes": 99}],
        "output": "out",
        "dropped": "gone",
        "documents": {"read": 1200, "kept": 1000, "changed": 3, "dropped": 200},
        "bytes": {"read": 90, "written": 80},
        "reasons": {"language": {"documents": 150, "bytes": 0}, "short": {"documents": 50, "bytes": 7}},
        "bad_lines": {"count": 2, "first": ["a:1 x", "a:2 y"]},
        "counts": {"z": 4},
    }
