"""Blocks of whole lines."""

from __future__ import annotations

import pytest

from megads.data.preprocess.input.blocks import Blocks, Position
from megads.data.preprocess.input.files import look_at
from megads.data.preprocess.plan import Segment


@pytest.mark.parametrize("begin", [0, 1, 500, 4000])
def test_blocks_of_a_packed_file_from_any_line(tmp_path, begin):
    import gzip
    import time

    raw = b"".join(b"%d " % number * 30 + b"\n" for number in range(100))
    (tmp_path / "a").write_bytes(gzip.compress(raw))
    offset = raw.rfind(b"\n", 0, begin) + 1
    blocks = Blocks([look_at(str(tmp_path / "a"))], [Segment(0, 0, -1)], Position(0, offset), 700)
    found = []
    while not blocks.is_done:
        block = blocks.next()
        if block is None:
            time.sleep(0.001)
        else:
            found.append(block)
    blocks.close()
    assert b"".join(block.data for block in found) == raw[offset:]
    assert found[0].start == offset
    assert all(block.data.endswith(b"\n") and len(block.data) < 1500 for block in found)
