"""What Retro needs of an embedder, and how one is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from megads.data.retro.project import Project
from megads.errors import ConfigError
from megads.storage.reading import read_json

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


def check_model(project: Project) -> int:
    """Return the numbers of a vector, 0 if only the loaded model knows them; loads neither model nor library.

    Raises:
        ConfigError: the model's folder does not exist.
    """
    own = project.config.own
    if own["embedder"] == "hashed":
        from megads.retro.embedders.hashed import DIM

        return DIM
    model = project.folder / own["embedder_model"]
    if not model.exists():
        raise ConfigError(f"--retro-bert-model {model}: no such folder")
    try:
        dim = read_json(model / "config.json")["hidden_size"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # a run or a checkpoint of megads or Megatron; what is broken is said when it is loaded
    return dim if isinstance(dim, int) else 0
