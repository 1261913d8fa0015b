"""The table of what drivers, libraries and schedulers print: rows that are right, and ends that were published."""

from __future__ import annotations

from collections import Counter

import pytest

from megads.monitor.causes.classify import End, classify
from megads.monitor.causes.patterns import CAUSES, PATTERNS
from tests.monitor.causes.recorded import RECORDED


@pytest.mark.parametrize("row", RECORDED, ids=[f"{number}-{row.source}" for number, row in enumerate(RECORDED)])
def test_published_ends_get_their_cause(row):
    found = classify(End(row.exit_code, "", "", "", row.said, row.left_s, row.aborted_by))
    assert (found.cause, found.host) == (row.cause, row.host)
    assert len(found.verdict.splitlines()) == 1


@pytest.mark.parametrize("row", [row for row in RECORDED if row.said and not row.host], ids=lambda row: row.source)
def test_a_rank_that_says_the_same_words_has_the_same_cause_and_its_host(row):
    found = classify(End(1, "error", f"rank 3 host n7: {row.said}", "n7"))
    if row.cause not in ("unknown", "time"):
        assert (found.cause, found.host) == (row.cause, "n7")


def test_every_cause_is_published_and_every_row_is_of_a_known_cause():
    assert {row.cause for row in PATTERNS} <= {*CAUSES}
    published = Counter(row.cause for row in RECORDED)
    assert {cause for cause in CAUSES if published[cause] < 3} == {"regression"}


@pytest.mark.parametrize(
    "said",
    [
        "step 120 loss 2.31 tokens/s 31k",
        "megads: restart 1 of 3 from iteration 10",
        "save     iter_0000120 in 3.2 s, 560 GB, 16 writers",
        "resume   from runs/7B/checkpoints/iter_0000040, iteration 40",
        "done     6 of 6 iterations",
        "memory   peak 38.1 GiB on rank 0, predicted 37.9 GiB",
        "loss.png, metrics.jsonl, config.yaml",
    ],
)
def test_what_a_healthy_run_prints_is_no_cause(said):
    assert not [row.says for row in PATTERNS if row.search(said)]
