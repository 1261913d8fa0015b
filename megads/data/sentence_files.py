"""Which documents of a file give samples of sentences, to BERT and T5, and how many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from megads.data.formats.record import read_record
from megads.data.formats.token_file import TokenFile
from megads.data.samples.masked.options import MaskedOptions
from megads.data.samples.masked.sentence_map import LONG_SENTENCE, has_sample
from megads.data.samples.mix import Source
from megads.errors import DataError

_DOCUMENTS = 4096  # looked at together


def check_split_into_sentences(files: Iterable[TokenFile], family: str) -> None:
    """Refuse files whose documents are not split into sentences.

    A record next to the file says so, else the suffix of Megatron's preprocessing, else a document of several
    sequences.

    Raises:
        DataError: naming the first.
    """
    for file in files:
        record = read_record(file.prefix)
        is_named = record.level == "sentence" if record else file.prefix.endswith("_sentence")
        if not is_named and (record or len(file) <= file.num_documents):
            raise DataError(
                f"{file.prefix}: holds whole documents, and MODEL_FAMILY={family} is trained on sentences; preprocess "
                "with --split-sentences, which writes PREFIX_text_sentence, or set FORCE=1"
            )


def holds_sample(file: TokenFile, documents: range, options: MaskedOptions) -> bool:
    """Return whether one of some documents of a file gives a sample; reads until the first that does."""
    for first in range(documents.start, documents.stop, _DOCUMENTS):
        borders = file.document_row.read(first, min(first + _DOCUMENTS, documents.stop) + 1).astype(np.int64)
        start = int(borders[0])
        lengths = file.length_row.read(start, int(borders[-1]))
        if has_sample(lengths, borders - start, options.min_sentences):
            return True
    return False


def check_has_sample(split: str, sources: Sequence[Source], options: MaskedOptions, files: Sequence[TokenFile]) -> None:
    """Refuse a split none of whose documents gives a sample; of the one to train on, a file like this.

    Raises:
        DataError: saying what a document needs.
    """
    found = [holds_sample(file, source.documents, options) for file, source in zip(files, sources, strict=True)]
    if all(found) or (split != "train" and any(found)):
        return
    source = sources[found.index(False)]
    raise DataError(
        f"{split}: none of the {len(source.documents)} documents of {source.prefix} has {options.min_sentences} "
        f"or more sentences of at most {LONG_SENTENCE} tokens; preprocess with "
        "--split-sentences, or use other data"
    )


def count_samples(source: Source, options: MaskedOptions, seed: int) -> int:
    """Return how many samples one epoch of a source has, exactly: the epoch is drawn.

    Raises:
        DataError: none, or the file is broken.
    """
    recipe = options.recipe(source.prefix, source.stamp, source.documents, source.tokens, None, seed)
    return recipe.make().specs[0].shape[0]
