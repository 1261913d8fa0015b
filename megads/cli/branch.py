"""``megads branch``: a run of its own from a checkpoint of another one, with other settings or data."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.request import settings_command
from megads.cli.options.run import run_options
from megads.cli.train import begin_run

if TYPE_CHECKING:
    from megads.launch.request import TrainRequest

OWN = {"--at": True, "--name": True, "--copy": False}
"""Options of this command, and whether a word follows; the line that resumes the branch has none of them."""


@settings_command
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--at", type=click.IntRange(min=1), metavar="ITERATION", help="Of the checkpoint; default: the newest.")
@click.option("--name", required=True, help="Of the branch; its folder is next to that of RUN.")
@click.option("--copy", is_flag=True, help="Copy the checkpoint, where files cannot be linked.")
@run_options
def branch(
    request: Callable[[], TrainRequest], run: Path, at: int | None, name: str, copy: bool, **options: Any
) -> None:
    """Train a branch of RUN: from one of its checkpoints, in a run folder of its own. RUN stays as it is.

    \b
      DATA_STAGES=anneal.yaml megads branch runs/7B --at 20000 --name anneal
      LR=1e-4 TRAIN_ITERS=24000 megads branch runs/7B --at 20000 --name lower-rate

    Settings are those of RUN, and what is given as for `megads train`. The stages of DATA_STAGES come behind what RUN
    was trained on. The same command resumes the branch.
    """
    from megads.errors import LaunchError
    from megads.launch.branch import (
        branch_folder,
        find_point,
        is_same_branch,
        make_branch,
        remove_unused,
        request_of_branch,
    )
    from megads.launch.user_ranks.entry import started_rank

    if started_rank(dict(os.environ)) is not None:
        raise LaunchError("megads branch: make the branch once with --prepare, and start ranks with `megads train`")
    if options.pop("fresh"):
        raise LaunchError("--fresh: a branch is a new run; use another --name")
    given = request()
    for variable in ("RUN_DIR", "RUN_NAME", "CONFIG_FILE", "LOAD", "CKPT_DIR", "CKPT_STEP"):
        if given.env.get(variable):
            raise LaunchError(f"{variable}={given.env[variable]}: megads branch sets it; unset it")
    folder = branch_folder(run, name)
    is_new = not is_same_branch(folder, run, at)
    if is_new:
        found, point = find_point(run, at)
        make_branch(folder, found, point, given, copy=copy)
        click.echo(f"branch   {folder} of {run} at iteration {point.iteration}", err=True)
    asked = replace(request_of_branch(folder, given), words=_words(given.words, run))
    try:
        begin_run(request=lambda: asked, fresh=False, **options)
    finally:
        if is_new:  # a dry run, or settings that are refused, leave nothing
            remove_unused(folder)


def _words(words: tuple[str, ...], run: Path) -> tuple[str, ...]:
    """Return the command line as one of ``megads train``."""
    left, found = list(words[1:]), ["train"]
    while left:
        word = left.pop(0)
        option = word.partition("=")[0]
        if option in OWN:
            left = left[1:] if OWN[option] and "=" not in word else left
        elif Path(word) != run:
            found.append(word)
    return tuple(found)
