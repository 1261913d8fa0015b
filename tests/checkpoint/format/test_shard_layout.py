"""A slice's rectangles are the numbers that the slice has, wherever a run of it begins and ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megads.checkpoint.format.shard_layout import Box, ShardLayout, boxes, meet, parameters_of
from megads.config.schema import ModelConfig
from tests.checkpoint.made import slice_of
from tests.models import shapes
from tests.models.shapes import GPT, LLAMA, make_run

DEGREES = (1, 2, 4)


@st.composite
def cuts(draw):
    """Draw a parameter that four ranks can share, and one rank's slice of it."""
    width = draw(st.integers(1, 9))
    parts = tuple(draw(st.lists(st.integers(1, 3).map(lambda size: 4 * size), min_size=1, max_size=3)))
    shape, dim = draw(
        st.sampled_from([((sum(parts), width), 0), ((width, sum(parts)), 1), ((sum(parts),), 0), ((width,), None)])
    )
    degree = draw(st.sampled_from(DEGREES))
    return ShardLayout(shape, dim, parts if dim is not None else (), draw(st.integers(0, degree - 1)), degree)


@settings(deadline=None)
@given(cuts(), st.data())
def test_rectangles_are_the_run(cut, data):
    whole = np.arange(np.prod(cut.shape), dtype=np.float32).reshape(cut.shape)
    flat = slice_of(whole, cut).reshape(-1)
    assert (cut.local_shape, cut.count) == (slice_of(whole, cut).shape, flat.size)
    first = data.draw(st.integers(0, cut.count))
    count = data.draw(st.integers(0, cut.count - first))
    matrix = whole.reshape(whole.shape[0], -1)
    found = np.full(cut.count, np.nan)
    for box in boxes(cut, first, count):
        assert box.top < box.bottom
        assert box.left < box.right
        for row in range(box.top, box.bottom):
            for column in range(box.left, box.right):
                assert np.isnan(found[box.at(row, column)]), "two rectangles have the same number"
                found[box.at(row, column)] = matrix[row, column]
    assert np.array_equal(found[first : first + count], flat[first : first + count])
    assert np.isnan(found[:first]).all()
    assert np.isnan(found[first + count :]).all()


@settings(deadline=None)
@given(cuts(), st.sampled_from(DEGREES))
def test_slices_of_all_ranks_are_the_parameter_once(cut, degree):
    seen = np.zeros((cut.shape[0], int(np.prod(cut.shape[1:]))), int)
    for rank in range(degree):
        mine = cut.of(rank, degree)
        for box in boxes(mine, 0, mine.count):
            seen[box.top : box.bottom, box.left : box.right] += 1
    assert (seen == (1 if cut.dim is not None else degree)).all()


def test_rows_of_a_run_are_few_rectangles():
    # 1000 rows: the end of one, 998 whole ones, the beginning of one.
    assert [box.bottom - box.top for box in boxes(ShardLayout((1000, 10)), 5, 9990)] == [1, 998, 1]


@pytest.mark.parametrize(
    ("other", "common"),
    [
        ((0, 4, 0, 4), (0, 4, 0, 4)),
        ((2, 9, 1, 3), (2, 4, 1, 3)),
        ((4, 9, 0, 4), None),
        ((0, 4, 4, 9), None),
    ],
)
def test_two_rectangles_meet_where_both_are(other, common):
    one = Box(0, 4, 0, 4, 0, 4)
    assert meet(one, Box(*other, 0, 4)) == meet(Box(*other, 0, 4), one) == common


KINDS = {
    **shapes.KINDS,
    **shapes.SEQUENCE_KINDS,
    **shapes.FAMILIES,
    "llama-tied": LLAMA.model_copy(update={"tied_embeddings": True}),
    "llama-biases": LLAMA.model_copy(update={"bias": True}),
    "llama-learned": LLAMA.model_copy(update={"position_embedding": "learned"}),
    "llama-layernorm": LLAMA.model_copy(update={"normalization": "layernorm"}),
    "gpt-untied": GPT.model_copy(update={"tied_embeddings": False}),
    "gpt-no-bias": GPT.model_copy(update={"bias": False}),
    "gpt-rmsnorm": GPT.model_copy(update={"normalization": "rmsnorm"}),
    "padded": LLAMA.model_copy(update={"vocab_size": 57, "vocab_multiple": 64}),
    "five-layers": LLAMA.model_copy(update={"num_layers": 5}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_is_the_modules(kind):
    found = _parameters_of_module(KINDS[kind])
    assert parameters_of(KINDS[kind]) == found
    assert list(parameters_of(KINDS[kind])) == list(found)


def _parameters_of_module(model: ModelConfig) -> dict[str, ShardLayout]:
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.build import build_model

    found = {}
    for name, parameter in build_model(make_run(model), Groups(Grid(), 0)).named_parameters():
        shard = getattr(parameter, "shard", None)
        cut = (shard.dim, shard.parts) if shard is not None else (None, ())
        found[name] = ShardLayout(tuple(parameter.shape), *cut)
    return found
