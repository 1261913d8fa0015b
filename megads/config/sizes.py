"""Sizes that follow from others, for every rule and formula that needs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megads.config.schema import ModelConfig, RunConfig
from megads.errors import ConfigError
from megads.text.plural import plural


def model_degree(run: RunConfig) -> int:
    """Return the ranks that hold one copy of the model and one sample: TP x PP x SP."""
    grid = run.parallel
    return grid.tensor * grid.pipeline * grid.sequence


def layout_text(run: RunConfig) -> str:
    """Return ``TP=2 x PP=1 x SP=1``."""
    grid = run.parallel
    return f"TP={grid.tensor} x PP={grid.pipeline} x SP={grid.sequence}"


def data_degree(run: RunConfig, world_size: int) -> int:
    """Return the data-parallel degree that fills ``world_size`` ranks.

    Raises:
        ConfigError: the ranks cannot be split, or a given ``DP`` is another number.
    """
    used, layout = model_degree(run), layout_text(run)
    if world_size % used:
        raise ConfigError(
            f"{plural(world_size, 'rank')} cannot be split into {layout} (= {used}); "
            f"use a multiple of {plural(used, 'rank')}"
        )
    data = world_size // used
    if run.parallel.data not in (0, data):
        raise ConfigError(
            f"DP={run.parallel.data}, but {world_size} ranks / ({layout}) = {data}; leave DP unset or use DP={data}"
        )
    return data


@dataclass(frozen=True)
class HeadCount:
    """What one sequence rank computes of a layer's attention."""

    queries: int
    keys: int  # key heads, and value heads
    is_even: bool  # whether as many of the queries use each of the keys


def heads_of_rank(model: ModelConfig, tensor: int, sequence: int) -> Iterator[HeadCount]:
    """Yield the heads of every sequence rank, up to which of them have one more.

    ``num_heads / tensor`` query heads are dealt out in runs whose lengths differ by one at
    most; a key/value head goes to every rank with a query head it serves.
    """
    heads, keys = model.num_heads // tensor, model.num_kv_heads // tensor
    serves = heads // keys
    start = 0
    for rank in range(sequence):
        end = start + heads // sequence + (rank < heads % sequence)
        keys = (end - 1) // serves - start // serves + 1 if end > start else 0
        yield HeadCount(end - start, keys, is_even=keys < 2 or (start % serves, end % serves) == (0, 0))
        start = end
