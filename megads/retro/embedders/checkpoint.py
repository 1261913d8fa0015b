"""A BERT of megads: a run, a checkpoint, or a folder that megads can load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from megads.errors import ConfigError
from megads.inference.session import SessionRequest, open_session
from megads.models.bert import BERT
from megads.retro.embedders.base import Progress
from megads.retro.embedders.pooling import embed_rows


class CheckpointBert:
    """The mean of the last hidden states of a text's tokens; see :class:`Embedder`.

    Args:
        source: what ``megads generate`` takes.
        length: most tokens of a text, [CLS] and [SEP] included.
        batch: texts at a time.
        local_rank: of this process, whose device it takes; it loads all of the model.

    Raises:
        MegadsError: the source is missing or broken, or is no BERT.
    """

    def __init__(self, source: Path, length: int, batch: int, local_rank: int = 0):
        alone = {"MEGADS_RANK": "0", "MEGADS_WORLD_SIZE": "1", "MEGADS_LOCAL_RANK": str(local_rank)}
        session = open_session(SessionRequest(source, dtype="fp32", uses=("masked",)), alone)
        module, specials = session.runner.module, session.tokenizer.specials
        if not isinstance(module, BERT) or specials.cls is None or specials.sep is None:
            raise ConfigError(f"--retro-bert-model {source}: is no BERT with [CLS] and [SEP]; name one")
        self._session, self._module, self._ends = session, module, (specials.cls, specials.sep)
        self._length, self._batch = min(length, session.runner.context), batch
        self.dim = int(module.config.hidden_size)
        self.summary = f"BERT of {source.name}, {self.dim} numbers: {session.summary}"

    def embed(self, texts: Sequence[str], progress: Progress = lambda texts: None) -> npt.NDArray[np.float32]:
        """Return a vector for each text, float32 [texts, dim]."""
        cls, sep = self._ends
        encode, most = self._session.tokenizer.encode_plain, self._length - 2
        rows = [[cls, *encode(text)[:most], sep] for text in texts]
        return embed_rows(rows, self.dim, self._batch, self._hidden, progress)

    def _hidden(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return self._module.states(self._session.runner.run(rows))
