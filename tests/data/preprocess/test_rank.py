"""What every kind of job shares: the ends of parts add up, and no worker is started without work."""

from __future__ import annotations

import itertools
from dataclasses import replace

from megads.data.preprocess.input.files import Source
from megads.data.preprocess.output import Point
from megads.data.preprocess.plan import How, Job, Segment
from megads.data.preprocess.rank import _add_points, count_workers
from megads.data.tokenizers.base import TokenizerSpec


def test_the_ends_of_parts_add_up():
    one = Point(documents=2, text_bytes=10, used=11, bad=1, bad_lines=("a:1",), num_bytes=(4, 6), counts={"x": 1})
    two = Point(
        documents=3, text_bytes=20, used=21, bad=2, bad_lines=("b:2",), num_bytes=(5, 7), counts={"y": 2, "x": 3}
    )
    total = _add_points([one, two])
    assert total == Point(
        documents=5,
        text_bytes=30,
        used=32,
        bad=3,
        bad_lines=("a:1", "b:2"),
        num_bytes=(9, 13),
        counts={"x": 4, "y": 2},
        is_done=True,
    )
    assert list(itertools.chain(one.counts.items())) == [("x", 1)]
    tokens = replace(one, sequences=(3, 4))
    assert _add_points([tokens, tokens]).sequences == (6, 8)


def test_as_many_workers_as_there_are_blocks():
    def count(kind: str, *sizes: int) -> int:
        inputs = tuple(Source(str(number), kind, size, 0) for number, size in enumerate(sizes))
        job = Job(inputs, "out", TokenizerSpec("NullTokenizer"), how=How(workers=8, block_bytes=10))
        return count_workers(job, [Segment(number, 0, size) for number, size in enumerate(sizes)])

    assert count("plain", 10) == 1
    assert count("plain", 11, 10) == 3
    assert count("plain", 1000) == 8
    assert count("plain") == 1
    assert count("gzip", 10) == 8
