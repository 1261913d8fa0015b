"""Neighbours that come with a prompt: texts of a user, or passages that were found for a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megads.data.qa.questions import question_of
from megads.data.tokenizers.base import Tokenizer
from megads.errors import ConfigError, DataError
from megads.inference.retro.neighbors import GivenNeighbors
from megads.inference.retro.runner import RetroRunner
from megads.inference.runner import Runner

_EXPECTED = 'expected a list of texts, for all chunks, or a list of them for each chunk: ["..."] or [["..."], ["..."]]'


def read_neighbors(record: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], ...]:
    """Return the neighbours in a line of prompts: for each chunk of its text, or one list for all.

    ``neighbors`` is a list of texts, or a list of such lists; ``ctxs`` are passages, as in
    :mod:`megads.data.qa.questions`, for all chunks. Without any of them there are none.

    Raises:
        DataError: they are not that.
    """
    if "neighbors" not in record:
        if "ctxs" not in record:
            return ()
        contexts = question_of({"question": "-", "ctxs": record["ctxs"]}, where).contexts
        return (contexts,) if contexts else ()
    given = record["neighbors"]
    if not isinstance(given, list):
        raise DataError(f"{where}: neighbors is {given!r:.60}; {_EXPECTED}")
    chunks = given if given and all(isinstance(each, list) for each in given) else [given] if given else []
    for texts in chunks:
        if wrong := [each for each in texts if not isinstance(each, str)]:
            raise DataError(f"{where}: neighbors holds {wrong[0]!r:.60}; {_EXPECTED}")
    return tuple(tuple(texts) for texts in chunks)


def source_of(runner: Runner, tokenizer: Tokenizer, texts: Sequence[Sequence[str]]) -> GivenNeighbors | None:
    """Return the neighbours of a prompt as a model looks at them; None: it has none.

    Raises:
        ConfigError: the model looks at no neighbours.
    """
    if not texts:
        return None
    model = runner.module.config
    if not isinstance(runner, RetroRunner):
        raise ConfigError(f"has neighbors, and a model of the family {model.family} looks at none; use a retro model")
    return GivenNeighbors(
        [[tokenizer.encode(each) for each in chunk] for chunk in texts],
        num_neighbors=model.retro_num_neighbors,
        retrieved_length=model.retro_chunk_length * model.retro_retrieved_chunks,
        end=tokenizer.eod,
    )
