"""``megads data index``: sample indices before the run, so that no accelerator waits for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from megads.cli.options.request import settings_command

if TYPE_CHECKING:
    from megads.config.schema import RunConfig
    from megads.data.samples.index_cache.cache import Cache
    from megads.data.samples.recipe import Recipe
    from megads.launch.request import TrainRequest


@settings_command
@click.option("--nodes", type=click.IntRange(min=0), default=0, help="Hosts of the training job.")
@click.option("--workers", type=click.IntRange(min=1), help="Indices built in parallel.  [default: cores]")
def index(request: Callable[[], TrainRequest], nodes: int, workers: int | None) -> None:
    """Build the sample indices of a run before it starts; it then finds them in DATA_CACHE_PATH.

    \b
      megads data index --preset 7B
      megads data index --preset 7B --nodes 64      # on a login node, for a job of 64 hosts

    The same settings, environment and --set as for `megads train`: they decide the indices.
    """
    from megads.cluster.machine import count_cores
    from megads.data.samples.index_cache.build import build_in_pool, not_verified
    from megads.data.samples.index_cache.cache import Cache
    from megads.launch.submit.training import plan_ahead

    run = plan_ahead(request(), nodes)
    cache, workers = Cache.of(run), workers or count_cores()
    recipes = _recipes(run, cache)
    missing = not_verified(recipes, cache, workers)
    there = len(recipes) - len(missing)
    if not missing:
        click.echo(f"nothing to do: {there} indices are in {cache.folder}")
        return
    started, total = time.perf_counter(), 0
    for number, built in enumerate(build_in_pool(missing, cache, workers), start=1):
        total += built.nbytes
        click.echo(
            f"{number:{len(str(len(missing)))}}/{len(missing)}  {built.nbytes / 1e6:10.1f} MB {built.seconds:8.2f} s  "
            f"{_name(built.recipe)}"
        )
    seconds = time.perf_counter() - started
    before = f", {there} existed" if there else ""
    click.echo(f"{len(missing)} indices, {total / 1e6:.1f} MB in {seconds:.1f} s{before}: {cache.folder}")


def _recipes(run: RunConfig, cache: Cache) -> list[Recipe]:
    """Return what the run needs, each index once; the demo corpus is made for it."""
    from megads.data.check import check_room
    from megads.data.datasets import Files, make_plans, read_shards, uses_demo
    from megads.data.samples.index_cache.cache import unique
    from megads.data.stages.shards import stages_with_files
    from megads.launch.job import make_demo_with_bar

    if uses_demo(run):
        make_demo_with_bar(run, sys.stderr)
    stages = [(alone, shards or read_shards(run)) for _, alone, shards in stages_with_files(run)]
    recipes: list[Recipe] = []
    for each, shards in stages or [(run, read_shards(run))]:
        plans = make_plans(each, shards, Files())
        check_room(each, plans, cache)
        recipes += [recipe for plan in plans.values() if plan for recipe in plan.recipes()]
    return unique(recipes, cache)


def _name(recipe: Recipe) -> str:
    """Return what an index is of, for people."""
    about = recipe.description()
    if recipe.kind in ("gpt", "sentences"):
        return f"samples of {about['prefix']}, documents {about['first']}..{about['last']}"
    if recipe.kind == "blend":
        return f"blend of {len(about['weights'])}, {about['size']} samples"
    return f"order of {about['size']} samples"
