"""Terms of a step's loss: nothing where there is one, and means of micro-batches where there are several."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megads.engine.loss_terms import LossTerms
from tests.models.noisy import ONE
from tests.ranks import groups_of, run_ranks

CPU = torch.device("cpu")


def module_of(*names: str) -> Any:
    return SimpleNamespace(loss_names=names, losses=None)


def test_a_loss_of_one_term_has_none():
    terms = LossTerms(module_of("lm_loss"), CPU)
    terms.add()
    assert terms.mean(1, ONE) == {}


def test_terms_are_means_over_micro_batches():
    terms = LossTerms(module := module_of("lm_loss", "sop_loss"), CPU)
    for losses in ([6.0, 0.5], [8.0, 1.5]):
        module.losses = torch.tensor(losses)
        terms.add()
    assert {name: float(each) for name, each in terms.mean(2, ONE).items()} == {"lm_loss": 7.0, "sop_loss": 1.0}


def _of_all_ranks(degrees: dict[str, int], expected: float) -> None:
    groups = groups_of(**degrees)
    terms = LossTerms(module := module_of("lm_loss", "sop_loss"), CPU)
    if groups.pipe_rank == groups.pipe_size - 1:
        module.losses = torch.tensor([1.0 + dist.get_rank(), 10.0 + dist.get_rank()])
        terms.add()
    found = terms.mean(1, groups)
    assert {name: float(each) for name, each in found.items()} == {"lm_loss": expected, "sop_loss": expected + 9}


@pytest.mark.dist
@pytest.mark.parametrize(
    ("degrees", "expected"), [({"data": 2}, 1.5), ({"seq": 2}, 1.5), ({"pipe": 2}, 2.0), ({"pipe": 2, "data": 2}, 3.5)]
)
def test_every_rank_has_the_mean_of_all(degrees, expected):
    size = 1
    for degree in degrees.values():
        size *= degree
    run_ranks(size, _of_all_ranks, degrees, expected)
