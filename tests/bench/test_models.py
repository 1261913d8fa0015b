"""Random tokens are the same on any number of ranks."""

from __future__ import annotations

from megads.bench.models import TINY, settings, tokens
from tests.bench.made import ROOT


def test_samples_of_a_step_do_not_depend_on_the_ranks():
    import torch

    one, two = (settings(ROOT, ranks, TINY, "fp32", 2, 4 // ranks) for ranks in (1, 2))
    alone = torch.stack(tokens(one, 3, 0))
    shared = torch.stack([batch for pair in zip(tokens(two, 3, 0), tokens(two, 3, 1), strict=True) for batch in pair])
    assert torch.equal(alone, shared)
    assert not torch.equal(alone, torch.stack(tokens(one, 4, 0)))
    assert int(alone.max()) < 256
