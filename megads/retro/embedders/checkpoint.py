"""A BERT of megads: a run, a checkpoint, or a folder that megads can load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.data.tokenizers.build import make_tokenizer
from megads.device.vendor import vendor
from megads.errors import ConfigError
from megads.families.table import FAMILIES
from megads.inference.load import load_model, open_weights
from megads.inference.runner import Runner
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
        weights = open_weights(source)
        family = weights.model.family
        if FAMILIES[family].samples != "bert":
            raise ConfigError(f"--retro-bert-model {source}: is a {family}, not a BERT; name one")
        self._tokenizer = make_tokenizer(weights.tokenizer())
        specials = self._tokenizer.specials
        if specials.cls is None or specials.sep is None:
            raise ConfigError(f"--retro-bert-model {source}: its tokenizer has no [CLS] and [SEP]; use that of a BERT")
        # Alone: ranks do not share the model, so no process group is made.
        groups, device = Groups(Grid(), 0), vendor().device(local_rank)
        module = load_model(weights, groups, device, torch.float32)
        self._ends, self._batch = (specials.cls, specials.sep), batch
        self._length = min(length, weights.context, weights.longest or length)
        self._module, self._runner = module, Runner(module, groups, context=weights.context, num_slots=0)
        self.dim = int(module.config.hidden_size)
        self.summary = f"BERT of {source.name}, {self.dim} numbers, on {device}"
        weights.close()

    def embed(self, texts: Sequence[str], progress: Progress = lambda texts: None) -> npt.NDArray[np.float32]:
        """Return a vector for each text, float32 [texts, dim]."""
        cls, sep = self._ends
        encode, most = self._tokenizer.encode_plain, self._length - 2
        rows = [[cls, *encode(text)[:most], sep] for text in texts]
        return embed_rows(rows, self.dim, self._batch, self._hidden, progress)

    def _hidden(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return cast(BERT, self._module).states(self._runner.run(rows))
