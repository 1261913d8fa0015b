"""The embedding that the first and the last stage hold is one parameter."""

from __future__ import annotations

import pytest

from tests.engine.deepspeed.test_pipeline import GPT, KIND_IDS, KINDS, run_grid
from tests.engine.plain import batches, make_engine, settings
from tests.ranks import groups_of


def _copies_stay_equal(grid, changes) -> None:
    """The embedding at both ends is the same bits after steps whose sums are rounded in another order."""
    import torch
    import torch.distributed as dist

    run, groups = settings(grid, **GPT, **changes), groups_of(**grid)
    engine = make_engine(run, groups)
    for step in range(3):
        engine.train_step(batches(run, step, groups.data_rank), 1e-2)
        if groups.pipe_rank in (0, groups.pipe_size - 1):
            mine = engine.module.embedding.weight.detach().clone()
            theirs = mine.clone()
            dist.broadcast(theirs, groups.ranks("ends")[0], group=groups.ends)
            assert torch.equal(mine, theirs)
    held = {state.name for state in engine.state.by_parameter()}
    assert ("embedding.weight" in held) == (groups.pipe_rank == 0)


@pytest.mark.dist
@pytest.mark.parametrize("changes", KINDS, ids=KIND_IDS)
@pytest.mark.parametrize("grid", [{"pipe": 2, "data": 2}, {"pipe": 4}], ids=["pp2dp2", "pp4"])
def test_the_tied_embedding_is_one_parameter_at_both_ends(grid, changes):
    run_grid(_copies_stay_equal, grid, changes)
