"""What an encoder cannot be combined with."""

from __future__ import annotations

from collections.abc import Iterator

from megads.config.rules.advice import Problem
from megads.config.schema import RunConfig
from megads.families.table import FAMILIES


def parts(run: RunConfig, world_size: int) -> Iterator[Problem]:
    """Check the parts that an encoder has, and the types of its tokens."""
    model = run.model
    if FAMILIES[model.family].samples != "bert":
        return
    if not model.tied_embeddings:
        text = "TIED_EMBEDDINGS=0 is not for bert, whose head projects onto the embedding"
        yield Problem(text, [{"model.tied_embeddings": True}])
    if model.token_types == 1:
        text = "TOKEN_TYPES=1 has no type for the second half of a sample"
        yield Problem(text, [{"model.token_types": 2}, {"model.token_types": 0}])


RULES = (parts,)
