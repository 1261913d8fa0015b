"""What Retro needs of an embedder, and how one is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from megads.data.retro.project import Project
from megads.errors import ConfigError

Progress = Callable[[int], None]
"""Called with how many texts were embedded since the last call."""


class Embedder(Protocol):
    """Texts to vectors. The same texts in the same order give the same bits.

    Attributes:
        dim: numbers of a vector.
        summary: what it is, for people.
    """

    dim: int
    summary: str

    def embed(self, texts: Sequence[str], progress: Progress = lambda texts: None) -> npt.NDArray[np.float32]:
        """Return a vector for each text, float32 [texts, dim]; zeros for a text without a token."""


def make_embedder(project: Project, local_rank: int = 0) -> Embedder:
    """Return the embedder that ``config.json`` names, on the device of a local rank.

    Raises:
        ConfigError: its name is unknown.
        MegadsError: a file of it is missing or broken, or its library is not installed.
    """
    own = project.config.own
    kind, model = own.get("embedder", ""), own.get("embedder_model", "")
    if kind == "hashed":
        from megads.retro.embedders.hashed import HashedWords

        return HashedWords()
    length, batch = int(own["bert_max_chunk_length"]), int(own["bert_batch_size"])
    if kind == "huggingface":
        from megads.retro.embedders.huggingface import HuggingFaceBert

        return HuggingFaceBert(project.folder / model, length, batch, local_rank)
    if kind == "megads":
        from megads.retro.embedders.checkpoint import CheckpointBert

        return CheckpointBert(project.folder / model, length, batch, local_rank)
    raise ConfigError(f"{project.folder}: embedder {kind!r} is unknown; use hashed, huggingface or megads")
