"""The benchmark of checkpoints measures every method on the same numbers."""

from __future__ import annotations

import pytest

from benchmarks.checkpoint import METHODS, Options, make_pieces, measure, report


def test_ranks_share_every_parameter(tmp_path):
    options = Options(tmp_path, 30, 3, 1, 0)
    shares = [make_pieces(options, rank) for rank in range(3)]
    for pieces in zip(*shares, strict=True):
        assert len({(piece.name, piece.cut) for piece in pieces}) == 1
        ends = [piece.first + piece.count for piece in pieces]
        assert [piece.first for piece in pieces] == [0, *ends[:-1]]
        assert ends[-1] == pieces[0].cut.count


@pytest.mark.slow
@pytest.mark.dist
def test_every_method_gives_back_what_it_saved(tmp_path, capsys):
    size, found = measure(Options(tmp_path, 0.1, 2, 1, 0))
    figures = report(size, found)
    assert size == 12 * (100_000 // 2048 * 2048)
    for name in METHODS:
        assert figures[f"{name} save GB/s"] > 0
        assert figures[f"{name} load GB/s"] > 0
    assert figures["raw save ratio"] == figures["raw load paired"] == 1
    assert "training stands still" in capsys.readouterr().out
    assert not (tmp_path / "state").exists() or not any((tmp_path / "state").iterdir())
