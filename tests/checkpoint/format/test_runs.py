"""Pieces of many ranks are few runs, and the runs are the pieces."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megads.checkpoint.format.manifest import File, Manifest, Run, file_name
from megads.checkpoint.format.runs import Collector, pack, table, unpack, with_files
from megads.checkpoint.format.shard_layout import ShardLayout

NAMES = ("a", "b", "c")
PIECES = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=3), max_size=8)


@given(PIECES, st.integers(1, 3))
def test_the_runs_are_the_pieces(files, degree):
    """Of each slice one share comes behind the other, some as long as the one before it and some not."""
    ends: dict[tuple[int, int], int] = {}
    given_pieces = {}
    for rank, shares in enumerate(files):
        given_pieces[file_name(rank)] = pieces = []
        for at, count in dict(shares).items():
            first = ends.get((at, rank % degree), 0)
            ends[at, rank % degree] = first + count
            pieces.append((NAMES[at], first, count))
    collector = Collector(NAMES)
    for rank, pieces in enumerate(given_pieces.values()):
        collector.add(rank, File(0, 0, rank % degree), table(pieces, NAMES))
    manifest = Manifest(0, ("weight",), {}, {}, {}, collector.files, collector.runs())
    for name, pieces in given_pieces.items():
        assert sorted(manifest.contents(name)) == sorted(pieces)
    for runs in manifest.runs.values():
        assert list(runs) == sorted(runs, key=lambda run: (run.tensor, run.first))


def test_what_ranks_share_evenly_is_told_once():
    """ZeRO 3 of 1000 data x 2 tensor ranks; the last share is shorter."""
    count, step = 9_995, 10
    files = {}
    for rank in range(2000):
        first = rank // 2 * step
        files[rank] = (File(10**6, 0, rank % 2), [("a", first, min(step, count - first))])
    made = with_files(_manifest({"a": ShardLayout((2 * count,), 0, (2 * count,))}, tensor=2), files)
    assert made.runs == {
        "a": tuple(
            run
            for tensor in (0, 1)
            for run in (
                Run(tensor, 0, 10, range(tensor, 1998, 2)),
                Run(tensor, 9990, 5, range(1998 + tensor, 1999 + tensor)),
            )
        )
    }
    made.check()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1 << 50), st.integers(1, 1 << 50))))
def test_a_table_is_unpacked_as_it_was(rows):
    held = table([(NAMES[at], first, count) for at, first, count in rows], NAMES)
    assert held.tolist() == [list(row) for row in rows]
    np.testing.assert_array_equal(unpack(pack(held)), held)


def test_layers_that_are_alike_are_packed_small():
    held = np.array([(at, 3071 * (at % 9 + 1), at % 9 + 1) for at in range(720)])
    assert len(pack(held)) < 400


def _manifest(tensors, tensor=1):
    layout = {"pipe": 1, "data": 1, "seq": 1, "tensor": tensor, "zero_stage": 3}
    return Manifest(0, ("weight",), layout, {}, tensors, {}, {})
