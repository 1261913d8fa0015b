"""The table of scorers."""

from __future__ import annotations

import pytest

from megads.detoxify.perspective import Perspective, ServiceOptions
from megads.detoxify.scoring import SCORERS, ScorerOptions
from megads.detoxify.word_list import WordList
from megads.errors import ConfigError


def test_each_kind_is_made_of_its_own_options():
    assert isinstance(SCORERS["stub"].make(ScorerOptions()), WordList)
    scorer = SCORERS["perspective"].make(ScorerOptions(ServiceOptions("key", workers=3)))
    assert isinstance(scorer, Perspective)
    assert (scorer.workers, scorer.batch) == (3, 1)
    scorer.close()
    with pytest.raises(ConfigError, match="--scorer hf needs --model DIR"):
        SCORERS["hf"].make(ScorerOptions())


def test_the_stub_says_what_it_is():
    assert "says nothing about toxicity" in SCORERS["stub"].help
