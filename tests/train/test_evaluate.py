import math

import pytest

from megads.train.evaluate import perplexity


def test_perplexity_is_not_capped():
    assert perplexity(2.0) == pytest.approx(math.exp(2))
    assert perplexity(25.0) == pytest.approx(math.exp(25))
    assert perplexity(1000.0) == math.inf
    assert math.isnan(perplexity(math.nan))
