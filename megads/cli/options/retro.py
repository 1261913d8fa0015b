"""Options of a model that looks at neighbours: how many, how much, and where they are looked up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from megads.cli.options.request import absolute
from megads.errors import ConfigError

if TYPE_CHECKING:
    from megads.inference.retro.neighbors import NeighborSource
    from megads.inference.session import Session

_OF_MODEL = {"retro_num_neighbors": click.IntRange(1, 1000), "retro_attention_gate": click.FloatRange(0, 1)}
_OPTIONS = (
    click.option(
        "--retro-num-neighbors",
        type=_OF_MODEL["retro_num_neighbors"],
        metavar="K",
        help="retro: neighbours of a chunk that are looked at; default: as in training.",
    ),
    click.option(
        "--retro-attention-gate",
        type=_OF_MODEL["retro_attention_gate"],
        metavar="G",
        help="retro: what they give is multiplied by this; 0: they are not looked at; default: as in training.",
    ),
    click.option(
        "--retro-project-dir",
        "--retro-workdir",
        metavar="DIR",
        help="retro: a project in whose index neighbours are looked up for texts that come without.",
    ),
)


def retro_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options."""
    for each in reversed(_OPTIONS):
        command = each(command)
    return command


def model_changes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the model that the options change."""
    return {name: options[name] for name in _OF_MODEL if options[name] is not None}


def retrieval_of(session: Session, options: Mapping[str, Any]) -> NeighborSource | None:
    """Return what looks up the neighbours of a chunk in a project; None: the options name none.

    Raises:
        ConfigError: the model looks at no neighbours, has other chunks, or another tokenizer.
        MegadsError: the project or its index cannot be read.
    """
    folder = options["retro_project_dir"]
    if not folder:
        return None
    from megads.data.retro.project import Project
    from megads.inference.retro.neighbors import RetrievedNeighbors
    from megads.inference.retro.runner import RetroRunner
    from megads.retro.embedders.base import make_embedder
    from megads.retro.query import nearest

    model = session.runner.module.config
    if not isinstance(session.runner, RetroRunner):
        raise ConfigError(f"--retro-project-dir {folder}: a model of the family {model.family} looks at no neighbours")
    project = Project.open(absolute(folder))
    if project.config.chunk_length != model.retro_chunk_length:
        raise ConfigError(
            f"--retro-project-dir {folder}: has chunks of {project.config.chunk_length} tokens, the model of "
            f"{model.retro_chunk_length}; use the project that it was trained with"
        )
    if project.tokenizer.fingerprint != session.tokenizer.fingerprint:
        raise ConfigError(f"--retro-project-dir {folder}: has another tokenizer than the model")
    found = nearest(project, functools.cache(lambda: make_embedder(project)))
    count, length = model.retro_num_neighbors, model.retro_chunk_length * model.retro_retrieved_chunks

    def ids(chunks: Sequence[Sequence[int]]) -> Any:
        return found(chunks, count)

    return RetrievedNeighbors(ids, lambda near: project.tokens(near, length), count)
