"""What bert cannot be combined with is refused with one line, and what it names works."""

from __future__ import annotations

import pytest

from megads.config.rules.advice import put
from megads.config.rules.encoder import RULES
from megads.config.schema import RunConfig
from tests.models.shapes import BERTS, GPT

BERT = RunConfig(model=BERTS["bert"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model.tied_embeddings": False}, "TIED_EMBEDDINGS=0 is not for bert"),
        ({"model.token_types": 1}, "TOKEN_TYPES=1 has no type for the second half"),
    ],
)
def test_what_cannot_work_is_refused_and_every_way_works(changes, told):
    assert not list(RULES[0](BERT, 1))
    (problem,) = RULES[0](put(BERT, changes), 1)
    assert problem.text.startswith(told)
    for way in problem.ways:
        assert not list(RULES[0](put(BERT, {**changes, **way}), 1))
    assert not list(RULES[0](put(RunConfig(model=GPT), changes), 1))
