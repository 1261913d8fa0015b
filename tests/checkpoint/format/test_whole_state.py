"""State of whole parameters in a checkpoint: written, read, refused."""

import contextlib
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.format.verify import verify
from megads.checkpoint.format.whole_state import WholeParamState
from megads.checkpoint.resume.progress import Progress
from megads.checkpoint.save import Saver, Snapshot
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.errors import CheckpointError

SHAPE = (6, 4)
CUT = ShardLayout(SHAPE, 0, (6,))
STATE = {
    "exp_avg": torch.arange(24.0).view(SHAPE),
    "Q.0": torch.arange(36.0).view(6, 6),
    "codes": torch.arange(24, dtype=torch.uint8).view(SHAPE),
    "norm": torch.tensor(2.5),
    "step": 3,
    "Q.count": 2,
    "nothing": None,
}


def saved(folder, state=STATE, **settings):
    from megads.checkpoint.owned_shard import OwnedShard

    snapshot = Snapshot(
        progress=Progress(iteration=5),
        shards=[OwnedShard("head.weight", CUT, 0, {"weight": torch.zeros(24)})],
        scalars={"optimizer_step": 0.0, "skipped_steps": 0.0},
        tensors={"head.weight": CUT},
        model={"vocab_size": 5},
        settings=settings,
        about={},
        layout={"pipe": 1, "data": 1, "seq": 1, "tensor": 1, "zero_stage": 1},
        states=[("head.weight", state)] if state else [],
    )
    return Saver(folder, Groups(Grid(), 0)).save(snapshot)


def test_state_comes_back_in_its_own_shapes(tmp_path):
    path = saved(tmp_path)
    verify(path)
    with Reader(path) as reader:
        found = reader.state("head.weight")
        assert reader.state("other") == {}
    assert set(found) == set(STATE)
    for key, value in STATE.items():
        if isinstance(value, torch.Tensor):
            assert torch.from_numpy(found[key].copy()).equal(value), key
        else:
            assert found[key] == value
    assert json.loads((path / "manifest.json").read_text())["format"] == 4
    assert read_manifest(path).has_optimizer


def test_an_optimizer_that_has_made_no_step_was_saved_all_the_same(tmp_path):
    path = saved(tmp_path, state={})
    assert read_manifest(path).has_optimizer
    assert json.loads((path / "manifest.json").read_text())["format"] == 3


@pytest.mark.parametrize("rows", [5, 8])
def test_another_padding_of_the_vocabulary_gives_moments_other_rows(tmp_path, rows):
    path = saved(tmp_path, {"exp_avg": STATE["exp_avg"], "norm": STATE["norm"], "step": 3})
    with Reader(path) as reader:
        found = reader.state("head.weight", ShardLayout((rows, 4), 0, (rows,)))
    both = min(rows, 6)
    assert found["exp_avg"].shape == (rows, 4)
    assert (found["exp_avg"][:both] == STATE["exp_avg"][:both].numpy()).all()
    assert not found["exp_avg"][both:].any()


def test_what_belongs_to_the_old_rows_is_refused(tmp_path):
    path = saved(tmp_path)
    with Reader(path) as reader, pytest.raises(CheckpointError, match=r"Q\.0 of head\.weight belongs to 6 rows, this"):
        reader.state("head.weight", ShardLayout((8, 4), 0, (8,)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_what_is_no_state_is_told_in_ways_that_are_caught(content):
    for told in (content, {"rank": 0, "numbers": {}, "tensors": content}, {"rank": 0, "tensors": {"a": content}}):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            WholeParamState.parse(told if isinstance(told, dict) else {"rank": told, "numbers": told, "tensors": told})


def test_a_side_is_no_longer_than_any_memory():
    with pytest.raises(ValueError, match="where a shape belongs"):
        WholeParamState.parse({"rank": 0, "numbers": {}, "tensors": {"a": ["F32", [10**30, 0]]}})
