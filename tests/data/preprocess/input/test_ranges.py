"""Lines from the middle of files."""

from __future__ import annotations

import random

import pytest

from megads.data.preprocess.input.ranges import RangeReader, count_lines


@pytest.mark.parametrize("size", [1, 2, 5, 17, 1000])
def test_ranges_hold_every_line_once(tmp_path, size):
    rng = random.Random(size)
    lines = [bytes(rng.choices(b"ab", k=rng.choice([0, 1, 3, 40]))) + b"\n" for _ in range(60)]
    path = tmp_path / "a"
    for raw in (b"".join(lines), b"".join(lines) + b"end", b"\n" * 9, b"x"):
        path.write_bytes(raw)
        reader = RangeReader()
        found = []
        for at in range(0, len(raw), size):
            found.append(reader.read(str(path), at, min(at + size, len(raw))))
            assert not found[-1] or reader.begin == len(b"".join(found[:-1]))
        reader.close()
        assert b"".join(found) == raw
        for at in range(1, len(raw)):
            assert count_lines(str(path), at) == raw[:at].count(b"\n")
