from pathlib import Path

import numpy as np
import pytest

from megads.data.samples.blend import BlendRecipe
from megads.data.samples.gpt import GPTRecipe, Stamp
from megads.data.samples.index_cache.cache import Cache
from megads.data.samples.masked.sentence_map import SentenceRecipe
from megads.data.samples.mix import OrderRecipe
from megads.data.samples.recipe import Recipe, Spec

STAMP = Stamp(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        (GPTRecipe("/x", STAMP, 0, 6, 8, 12, 1234, 0.8, 77), "gpt-66cba9f18a6d06791f3525e5"),
        (BlendRecipe((0.25, 0.75), 40), "blend-e21c5e0664c27f9172c4b139"),
        (OrderRecipe(99, 1), "order-9052a453eb9bdca889b84740"),
        (SentenceRecipe("/x", STAMP, 0, 4, 13, 2, None, 1234), "sentences-e373c7d1cbc9e4517cb30aee"),
    ],
)
def test_an_index_that_was_built_before_is_found_again(recipe: Recipe, name):
    """Descriptions do not change between versions: a cache may have taken hours."""
    assert Cache(Path("/c")).path(recipe).stem == name


def test_what_a_recipe_decides_is_without_its_size():
    recipe = GPTRecipe("/x", STAMP, 0, 6, 8, None, 1, nbytes=77)
    assert recipe.description().keys() == {
        *("prefix", "stamp", "first", "last", "seq_length", "num_samples", "seed", "cutoff")
    }
    assert recipe.description()["stamp"]["token_bytes"] == 3


def test_the_size_of_an_array():
    assert Spec("a", np.dtype(np.int32), (5, 2)).nbytes == 40
