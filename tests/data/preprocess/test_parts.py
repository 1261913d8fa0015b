"""The small pieces: who reads what, blocks, lines, packing."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from megads.data.preprocess.input.blocks import Blocks, Position
from megads.data.preprocess.input.files import Source, look_at, read_lines
from megads.data.preprocess.input.json_lines import parse_lines
from megads.data.preprocess.input.ranges import RangeReader, count_lines
from megads.data.preprocess.plan import Segment, split_inputs
from megads.data.preprocess.workers.pack import pack
from megads.errors import DependencyError


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


@pytest.mark.parametrize("size", [1, 2, 5, 17, 1000])
def test_ranges_hold_every_line_once(tmp_path, size):
    rng = random.Random(size)
    lines = [bytes(rng.choices(b"ab", k=rng.choice([0, 1, 3, 40]))) + b"\n" for _ in range(60)]
    path = tmp_path / "a"
    for raw in (b"".join(lines), b"".join(lines) + b"end", b"\n" * 9, b"x"):
        path.write_bytes(raw)
        reader = RangeReader()
        found = [reader.read(str(path), at, min(at + size, len(raw))) for at in range(0, len(raw), size)]
        reader.close()
        assert b"".join(found) == raw
        for at in range(1, len(raw)):
            assert count_lines(str(path), at) == raw[:at].count(b"\n")


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


def test_read_lines(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfone\n\n  \ntwo\nlast")
    (tmp_path / "b").write_bytes(b"three\r\n")
    assert list(read_lines([str(tmp_path / "*")])) == [b"one", b"two", b"last", b"three\r"]


def test_a_small_file_does_not_fill_the_memory(tmp_path):
    """200 MB of zeros in 200 kB."""
    import gzip

    from megads.data.preprocess.input.files import PIECE, read_pieces

    with gzip.open(tmp_path / "bomb", "wb") as file:
        for _ in range(200):
            file.write(bytes(10**6))
    sizes = [len(piece) for piece, _ in read_pieces(look_at(str(tmp_path / "bomb")))]
    assert sum(sizes) == 200 * 10**6
    assert max(sizes) <= PIECE


@pytest.mark.parametrize("mean", [2, 2000])
@pytest.mark.parametrize("eod", [None, 9])
def test_packing_against_a_loop(mean, eod):
    """Short documents and long ones take two ways."""
    rng = random.Random(mean)
    for _ in range(20):
        documents = [
            [[rng.randrange(9) for _ in range(rng.choice([0, 1, mean]))] for _ in range(rng.choice([0, 1, 1, 3]))]
            for _ in range(rng.randrange(8))
        ]
        flat = [token for document in documents for text in document for token in text]
        offsets = np.cumsum([0, *(len(text) for document in documents for text in document)])
        counts = [len(document) for document in documents]
        found = pack(
            np.array(flat, "u4"), offsets, counts, len(documents), dtype=np.dtype("<u2"), eod=eod, limit=10
        )  # fmt: skip
        tokens: list[int] = []
        lengths: list[int] = []
        sequences = []
        for document in documents:
            texts = [list(text) for text in document if text]
            if texts and eod is not None:
                texts[-1].append(eod)
            tokens += [token for text in texts for token in text]
            lengths += map(len, texts)
            sequences.append(len(texts))
        assert found.tokens.tolist() == tokens
        assert found.tokens.dtype == np.dtype("<u2")
        assert found.lengths.tolist() == lengths
        assert found.sequences.tolist() == sequences


def test_line_of_a_text():
    data = b'{"t": "a"}\n\n{"t": ["b", "c"]}\nbad\n{"t": []}\n{"t": "d"}\n'
    parsed = parse_lines(data, ("t",))
    assert parsed.texts == [["a", "b", "c", "d"]]
    assert parsed.counts == [[1, 2, 0, 1]]
    assert [parsed.line_of(0, text) for text in range(4)] == [0, 2, 2, 5]
    assert [number for number, _ in parsed.bad] == [3]
    assert (parsed.documents, parsed.lines) == (4, 6)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(DependencyError, match="pip install zstandard, or unpack them"):
        next(iter(read_lines([str(tmp_path / "a.zst")])))
