"""Progress over replicas; what is scored, tests/evaluate/test_tasks.py compares with transformers."""

from __future__ import annotations

from megads.evaluate.score import progress_of


def test_progress_counts_the_windows_of_all_replicas():
    seen = []
    show = progress_of(lambda done, total: seen.append((done, total)), 4)
    show(2, 10)
    assert seen == [(8, 40)]
