"""A checkpoint of real ranks, resharded for other real ranks: each finds all it owns in its own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.checkpoint.resume.progress import Progress
from tests.parity.checkpoints import KINDS, save
from tests.parity.layouts import Layout, engine_of, train_on
from tests.ranks import run_ranks

ALL = {"deepspeed.param_persistence_threshold": "0"}
PAIRS = [
    (Layout(tp=2, dp=2, zero=1), Layout(dp=4, zero=3, more=ALL)),
    (Layout(dp=2, zero=3, more=ALL), Layout(pp=2, tp=2, zero=1)),
    (Layout("gpt", pp=2, zero=0), Layout("gpt", dp=2, sp=2, zero=2)),
    (Layout("gpt", sp=2, zero=1), Layout("gpt", pp=2, dp=2, zero=0)),
    (Layout("llama-tied", pp=2, zero=1), Layout("llama-tied", tp=2, dp=2, zero=1)),
]


def _write(layout: Layout, folder: Path) -> None:
    engine, run, groups = engine_of(layout)
    train_on(engine, run, groups, range(2))
    save(engine, run, groups, folder, Progress(2))


def _finds_it_in_its_file(layout: Layout, source: Path, made: Path) -> None:
    """Read what the engine owns of both: the same bits; from no file but its own and that of the first tensor rank."""
    import numpy as np

    from megads.checkpoint.format.manifest import file_name
    from megads.checkpoint.format.reader import Reader

    engine, _, groups = engine_of(layout)
    first = groups.grid.rank({**groups.grid.coordinate(groups.rank), "tensor": 0})
    with Reader(source) as before, Reader(made) as after:
        for piece in engine.state.owned_shards():
            for kind in KINDS:
                place = (piece.name, kind, piece.cut, piece.first, piece.count)
                np.testing.assert_array_equal(before.read(*place), after.read(*place), err_msg=f"{kind} {piece.name}")
            if not piece.cut.is_whole:
                assert set(after._files) <= {file_name(groups.rank), file_name(first)}, piece
        assert set(after._files) <= {file_name(groups.rank), file_name(first)}


@pytest.mark.dist
@pytest.mark.parametrize(("before", "after"), PAIRS, ids=lambda layout: str(layout))
def test_every_rank_reads_its_own_file(before: Layout, after: Layout, tmp_path: Path) -> None:
    from megads.checkpoint.convert.reshard import reshape, target_of
    from megads.checkpoint.format.manifest import read_manifest

    run_ranks(before.ranks, _write, before, tmp_path / "a", timeout_s=150)
    source = tmp_path / "a/iter_0000002"
    manifest = read_manifest(source)
    wanted = {"tensor": after.tp, "pipeline": after.pp, "sequence": after.sp, "data": after.dp}
    run = target_of(manifest, **wanted, zero_stage=after.zero)
    made = reshape(source, manifest, tmp_path / "b", run, workers=2).path
    run_ranks(after.ranks, _finds_it_in_its_file, after, source, made, timeout_s=150)
