"""CO2 of a kWh of electricity by country and state of the USA, from ``carbon.csv``.

The table holds what codecarbon 3.3.2 takes without a network: for countries the carbon intensity of Our World in Data
(Ember, CC BY 4.0), for states of the USA the output rates of EPA eGRID 2023. It is kept here because codecarbon needs
some thirty packages, and a plan is made on laptops.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

from megads.config.sources.parse import did_you_mean
from megads.errors import ConfigError
from megads.storage.reading import read_text

WORLD = 475.0
"""Mean of the world (IEA, 2019), in grams: what codecarbon takes for a country that it does not know."""


def grams_per_kwh(region: str) -> float:
    """Return the grams of CO2 equivalent of a kWh in a region.

    Args:
        region: a country by its three letters (ISO 3166-1), as ``USA``, or a state, as ``US-IL``; in any case.

    Raises:
        ConfigError: it is not in the table.
    """
    table = _table()
    if region.upper() not in table:
        raise ConfigError(
            f"no region {region!r}; use the three letters of a country such as USA or FRA, or a state such as US-IL"
            f"{did_you_mean(region.upper(), list(table))}"
        )
    return table[region.upper()]


@lru_cache
def _table() -> dict[str, float]:
    rows = csv.DictReader(read_text(Path(__file__).with_name("carbon.csv")).splitlines())
    return {row["region"]: float(row["grams_per_kwh"]) for row in rows}
