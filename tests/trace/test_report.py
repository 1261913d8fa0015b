"""What ``megads plan --trace`` prints of a rank, as text and as JSON."""

from __future__ import annotations

import json

import pytest

from megads.trace.report import ranks_text
from tests.trace.dry_runs import tracer  # noqa: F401
from tests.trace.test_step import SMALL


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((5,), "5"),
        ((0, 4), "0, 4"),
        (tuple(range(16, 32)), "16-31"),
        (tuple(range(3, 1024, 8)), "3, 11, .. 1019"),
        ((0, 1, 8, 9, 16), "0, 1, 8, 9, .. 16"),
    ],
)
def test_ranks_of_a_group_are_a_few_words(ranks, text):
    assert ranks_text(ranks) == text


def test_text_and_json_have_every_collective_and_the_peak(tracer):  # noqa: F811
    trace, found, lines, content = tracer("7B", 517, 1024, SMALL | {"TP": "2", "PP": "2"}, has_memory=True)
    text = "\n".join(lines)
    assert lines[0] == "rank     517 of 1024: pipe 1, data 2, seq 0, tensor 1 (TP=2 PP=2 SP=1 DP=256 ZeRO=1)"
    assert text.count(" bytes (") == 0
    assert text.count("none (") == len(found.lines)
    assert json.loads(json.dumps(content)) == content
    assert content["equal"] is True
    assert sum(each["count"] for each in content["collectives"]) == sum(trace.calls.values())
    assert sum(each["bytes"] for each in content["axes"].values()) == sum(
        call.num_bytes * count for call, count in trace.calls.items()
    )
    assert content["memory"]["peak_total"] == trace.peak.total
    kinds = ("weights", "gradients", "optimizer", "buffers", "activations", "peak")
    assert all(any(line.startswith(kind) for line in lines) for kind in kinds)
