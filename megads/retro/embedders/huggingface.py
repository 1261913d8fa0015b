"""A BERT of Hugging Face's transformers, from a folder; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from megads.device.vendor import vendor
from megads.errors import DataError, DependencyError
from megads.retro.embedders.base import Progress
from megads.retro.embedders.pooling import embed_rows


class HuggingFaceBert:
    """The mean of the last hidden states of a text's tokens; see :class:`Embedder`.

    Args:
        folder: with ``config.json``, weights and tokenizer.
        length: most tokens of a text, [CLS] and [SEP] included.
        batch: texts at a time.
        local_rank: of this process, whose device it takes.

    Raises:
        DataError: the folder holds no model that transformers can load.
        DependencyError: transformers is not installed.
    """

    def __init__(self, folder: Path, length: int, batch: int, local_rank: int = 0):
        if not (folder / "config.json").is_file():
            raise DataError(f"--retro-bert-model {folder}: has no config.json; name a folder of Hugging Face's BERT")
        try:
            from transformers import AutoModel, AutoTokenizer
            from transformers.utils import logging
        except ImportError:
            raise DependencyError(
                "--bert-embedder-type huggingface needs transformers: pip install transformers"
            ) from None
        logging.set_verbosity_error()  # a head that is not used is worth no line
        logging.disable_progress_bar()
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            model = AutoModel.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"--retro-bert-model {folder}: {' '.join(str(error).split())[:200]}") from None
        self._device = vendor().device(local_rank)
        self._model = model.float().eval().to(self._device)
        self._length = min(length, int(getattr(model.config, "max_position_embeddings", length)))
        self._batch = batch
        self.dim = int(model.config.hidden_size)
        self.summary = f"BERT of {folder.name}, {self.dim} numbers, on {self._device}"

    def embed(self, texts: Sequence[str], progress: Progress = lambda texts: None) -> npt.NDArray[np.float32]:
        """Return a vector for each text, float32 [texts, dim]."""
        if not texts:
            return np.zeros((0, self.dim), np.float32)
        rows = self._tokenizer(list(texts), truncation=True, max_length=self._length)["input_ids"]
        return embed_rows(rows, self.dim, self._batch, self._hidden, progress)

    def _hidden(self, rows: Sequence[Sequence[int]]) -> Tensor:
        batch = self._tokenizer.pad({"input_ids": [list(row) for row in rows]}, return_tensors="pt").to(self._device)
        found: Tensor = self._model(**batch).last_hidden_state
        return found
