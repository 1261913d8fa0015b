"""The grid's arithmetic against a reshaped range, which is its definition."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megads.comm.grid import AXES, Grid
from megads.errors import ConfigError

GRIDS = [Grid(), Grid(tensor=4), Grid(2, 1, 1, 2), Grid(2, 3, 2, 2), Grid(1, 2, 3, 1)]


@pytest.mark.parametrize("grid", GRIDS)
def test_ranks_are_row_major_over_the_axes(grid):
    layout = np.arange(grid.world_size).reshape(grid.shape)
    for rank in range(grid.world_size):
        where = grid.coordinate(rank)
        assert layout[tuple(where[axis] for axis in AXES)] == rank
        assert grid.rank(where) == rank


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("along", [("tensor",), ("data", "seq"), ("pipe", "tensor"), ("seq",), AXES])
def test_groups_differ_only_in_their_axes(grid, along):
    layout = np.arange(grid.world_size).reshape(grid.shape)
    last = np.moveaxis(layout, [AXES.index(axis) for axis in along], list(range(-len(along), 0)))
    expected = {tuple(int(rank) for rank in row) for row in last.reshape(-1, grid.degree(*along))}
    groups = grid.groups(*along)
    assert set(groups) == expected
    assert sorted(rank for group in groups for rank in group) == list(range(grid.world_size))
    for group in groups:
        for rank in group:
            assert grid.group_of(rank, *along) == group


def test_the_drawing_in_the_docstring():
    assert Grid(pipe=2, tensor=2).groups("tensor") == [(0, 1), (2, 3)]
    assert Grid(pipe=2, tensor=2).groups("pipe") == [(0, 2), (1, 3)]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Grid(tensor=0), "tensor has degree 0"),
        (lambda: Grid(tensor=2).coordinate(2), "has no rank 2"),
        (lambda: Grid(tensor=2).coordinate(-1), "has no rank -1"),
        (lambda: Grid(tensor=2).rank({"tensor": 2}), "index 2 is outside axis tensor"),
        (lambda: Grid().rank({"model": 0}), "no axis 'model'"),
    ],
)
def test_what_can_not_be_is_refused(wrong, told):
    with pytest.raises(ConfigError, match=told):
        wrong()


def test_the_grid_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import megads.comm.grid"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
