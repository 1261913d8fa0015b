"""CO2 of electricity by region."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import megads
from megads.errors import ConfigError
from megads.plan.places.carbon import WORLD, grams_per_kwh

TABLE = Path(megads.__file__).parent / "plan/places/carbon.csv"


def test_regions_in_any_case():
    assert grams_per_kwh("FRA") == grams_per_kwh("fra") == 56
    # 474.436 lb of CO2 equivalent per MWh (EPA eGRID 2023).
    assert grams_per_kwh("us-il") == round(474.436 * 0.45359237)
    assert grams_per_kwh("NOR") < grams_per_kwh("USA") < WORLD < grams_per_kwh("POL")


def test_every_row_of_the_table_is_a_region_and_plausible():
    rows = list(csv.DictReader(TABLE.read_text().splitlines()))
    regions = [row["region"] for row in rows]
    assert len(regions) == len(set(regions)) > 250
    assert sum(region.startswith("US-") for region in regions) >= 51
    assert all(0 < float(row["grams_per_kwh"]) < 1500 for row in rows)


@pytest.mark.parametrize("region", ["", "US", "IL", "France", "US-XX"])
def test_an_unknown_region_is_one_line(region):
    with pytest.raises(
        ConfigError, match=f"^no region '{region}'; use the three letters of a country such as USA"
    ) as e:
        grams_per_kwh(region)
    assert "\n" not in str(e.value)
