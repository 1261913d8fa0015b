"""What the steps read: JSON lines with texts and scores, and prompts with their toxicity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.data.preprocess.input.files import numbered_lines
from megads.errors import DataError
from megads.storage.reading import parse_json


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt of RealToxicityPrompts' form.

    Attributes:
        text: to continue.
        toxicity: of the prompt itself, from 0 to 1; None: unknown.
    """

    text: str
    toxicity: float | None = None


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of a file of JSON lines, compressed or not, with its place, ``FILE:LINE``; skip blank lines.

    Raises:
        DataError: the file cannot be read, or a line is not an object.
    """
    try:
        for number, line in numbered_lines(str(path)):
            where = f"{path}:{number}"
            try:
                found = parse_json(line)
            except ValueError as error:
                raise DataError(f"{where}: {error}") from None
            if not isinstance(found, dict):
                raise DataError(f"{where}: expected an object, as {{...}}")
            yield where, found
    except DataError as error:
        raise DataError(str(error).removeprefix("--input ")) from None


def text_of(where: str, record: dict[str, Any], key: str = "text") -> str:
    """Return a text of a record; DataError where it has none."""
    text = record.get(key)
    if not isinstance(text, str):
        raise DataError(f'{where}: has no "{key}"; expected an object with a text of this name')
    return text


def score_of(where: str, record: dict[str, Any], attribute: str) -> float | None:
    """Return the score of an annotated record; None: its text has none.

    Raises:
        DataError: it was not annotated, has no such attribute, or the score is not a number from 0 to 1.
    """
    if "score" not in record:
        raise DataError(f'{where}: has no "score"; run `megads detoxify annotate` on the file first')
    scores = record["score"]
    if scores is None:
        return None
    if not isinstance(scores, dict) or attribute not in scores:
        names = ", ".join(scores) if isinstance(scores, dict) else "none"
        raise DataError(f'{where}: "score" has no {attribute!r}; it has {names}: choose with --attribute')
    return share(where, attribute, scores[attribute])


def share(where: str, name: str, value: Any) -> float:
    """Return a number from 0 to 1; DataError for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value <= 1:
        raise DataError(f"{where}: {name} is {value!s:.40}; expected a number from 0 to 1")
    return float(value)


def read_prompts(path: Path) -> list[ScoredPrompt]:
    """Return the prompts of a file: ``{"prompt": {"text": "...", "toxicity": 0.3}}`` or ``{"prompt": "..."}`` a line.

    Raises:
        DataError: the file cannot be read, has no prompt, or a line is wrong.
    """
    found = []
    for where, record in read_records(path):
        prompt = record.get("prompt")
        about = prompt if isinstance(prompt, dict) else {"text": prompt}
        text, toxicity = about.get("text"), about.get("toxicity")
        if not isinstance(text, str):
            raise DataError(f'{where}: expected {{"prompt": {{"text": "..."}}}} or {{"prompt": "..."}}')
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise DataError(f"{where}: the prompt is not UTF-8: it holds half of a surrogate pair")
        found.append(ScoredPrompt(text, None if toxicity is None else share(where, "toxicity", toxicity)))
    if not found:
        raise DataError(f"{path}: has no prompt")
    return found
