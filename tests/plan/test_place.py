"""Places: devices on their usual hosts."""

from __future__ import annotations

import pytest

from megads.errors import ConfigError
from megads.plan.place import place_of


def test_neighbours_have_the_smallest_level_that_joins_them():
    place = place_of("h100")
    assert [place.level(ranks).what for ranks in (2, 8, 9)] == ["inside a host", "inside a host", "between hosts"]
    assert place.peak_tflops("bf16") == 989
    with pytest.raises(ConfigError, match="no device"):
        place_of("abacus")
