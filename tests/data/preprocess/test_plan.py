"""Who reads which part of the input."""

from __future__ import annotations

import random

import pytest

from megads.data.preprocess.input.files import Source
from megads.data.preprocess.plan import Segment, split_inputs


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 50])
def test_parts_are_the_input_in_order(parts):
    """Plain files are cut without a gap; others go whole to one part; nothing is lost or done twice."""
    rng = random.Random(parts)
    for _ in range(50):
        kinds = [rng.choice(["plain", "gzip"]) for _ in range(rng.randrange(1, 8))]
        inputs = tuple(Source(f"{n}", kind, rng.choice([0, 1, 9, 1000]), 0) for n, kind in enumerate(kinds))
        found = [segment for part in split_inputs(inputs, parts) for segment in part]
        expected = [index for index, source in enumerate(inputs) if source.size or not source.is_plain]
        assert sorted({segment.source for segment in found}) == expected
        assert [segment.source for segment in found] == sorted(segment.source for segment in found)
        for index, source in enumerate(inputs):
            mine = [segment for segment in found if segment.source == index]
            if source.is_plain:
                assert [byte for each in mine for byte in range(each.start, each.stop)] == list(range(source.size))
            else:
                assert mine == [Segment(index, 0, -1)]
