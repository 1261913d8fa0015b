"""Scores of a Hugging Face classifier of texts in a local folder. Nothing is downloaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megads.errors import ConfigError
from megads.text.plural import listed

if TYPE_CHECKING:
    from torch import Tensor

TOXIC = ("toxicity", "toxic", "hate", "hateful", "offensive", "abusive")
"""Names of classes that stand for toxicity, the first that a model has."""
LONGEST = 512
"""Tokens of a text, where neither tokenizer nor model says."""


class Classifier:
    """Scores texts with a model of transformers: every class is an attribute, and one of them is also ``toxicity``.

    Several classes of one text (``problem_type: multi_label_classification``) and a single output are
    probabilities by the logistic function, classes that exclude each other by softmax; those of a
    regression are what the model says, cut to 0 and 1.

    Args:
        folder: with config.json, weights and tokenizer.
        label: name of the class that stands for toxicity; empty: the first of :data:`TOXIC`.
        batch: texts at a time.

    Raises:
        ConfigError: the folder has no such model, or no class that stands for toxicity.
    """

    workers = 1

    def __init__(self, folder: Path | None, label: str = "", batch: int = 32):
        if folder is None:
            raise ConfigError("--scorer hf needs --model DIR, a local folder with a classifier")
        if not (folder / "config.json").is_file():
            raise ConfigError(f"--model {folder}: has no config.json; expected the folder of a Hugging Face classifier")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import torch

        from megads.device.vendor import vendor

        self.batch, self._folder, self._torch = batch, folder, torch
        try:
            with _quiet():
                self._tokenizer, model, loaded = _load(folder)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            raise ConfigError(f"--model {folder}: transformers cannot load it: {error!s:.200}") from None
        if missing := sorted(loaded["missing_keys"]):
            raise ConfigError(
                f"--model {folder}: lacks the weights {listed(missing[:3])}; is it a classifier of texts?"
            )
        self._device = vendor(os.environ).device(0)
        self._model = model.to(self._device).eval()
        config = model.config
        self.labels = [str(config.id2label[number]).lower() for number in range(config.num_labels)]
        self._kind = config.problem_type or ("single_label_classification" if config.num_labels > 1 else "")
        self._toxic = self._find(label)
        longest = getattr(config, "max_position_embeddings", LONGEST) or LONGEST
        # Positions of RoBERTa begin behind the number of the padding token.
        shift = (config.pad_token_id or 0) + 1 if "roberta" in config.model_type else 0
        self._longest = min(longest - shift, self._tokenizer.model_max_length)
        # Without a token for padding, as GPT-2 and Llama are, rows of several lengths cannot be told from their ends.
        self._pads = None not in (self._tokenizer.pad_token, config.pad_token_id)

    def about(self) -> Mapping[str, Any]:
        """Return what decides the scores."""
        return {"scorer": "hf", "model": str(self._folder), "toxicity": self.labels[self._toxic]}

    def score(self, texts: Sequence[str]) -> list[Mapping[str, float]]:
        """Return the scores of texts; of a text that is too long those of its beginning."""
        size = len(texts) if self._pads else 1
        rows = [row for at in range(0, len(texts), max(1, size)) for row in self._rows(texts[at : at + size])]
        return [
            {
                "toxicity": row[self._toxic],
                **{name: row[at] for at, name in enumerate(self.labels) if name != "toxicity"},
            }
            for row in rows
        ]

    def _rows(self, texts: Sequence[str]) -> list[list[float]]:
        words = self._tokenizer(
            list(texts), padding=self._pads, truncation=True, max_length=self._longest, return_tensors="pt"
        ).to(self._device)
        with self._torch.inference_mode():
            found: list[list[float]] = self._probabilities(self._model(**words).logits.float()).tolist()
        return found

    def stop(self) -> None:
        """Do nothing: no call waits."""

    def close(self) -> None:
        """Do nothing: it holds nothing that must be closed."""

    def _probabilities(self, logits: Tensor) -> Tensor:
        if self._kind == "regression":
            return logits.clamp(0, 1)
        return logits.softmax(dim=-1) if self._kind == "single_label_classification" else logits.sigmoid()

    def _find(self, label: str) -> int:
        """Return the number of the class that stands for toxicity."""
        if label:
            if label.lower() not in self.labels:
                raise ConfigError(f"--label {label}: the model has {listed(self.labels)}")
            return self.labels.index(label.lower())
        for name in TOXIC:
            if name in self.labels:
                return self.labels.index(name)
        if len(self.labels) == 1:
            return 0
        raise ConfigError(
            f"--model {self._folder}: has the classes {listed(self.labels)}; say with --label which one is toxicity"
        )


def _load(folder: Path) -> tuple[Any, Any, Any]:
    """Return tokenizer, model and what was missing."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model, loaded = AutoModelForSequenceClassification.from_pretrained(
        folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
    )
    return AutoTokenizer.from_pretrained(folder, local_files_only=True), model, loaded


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from reporting on its own."""
    from transformers.utils import logging

    level, shows = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows:
            logging.enable_progress_bar()
