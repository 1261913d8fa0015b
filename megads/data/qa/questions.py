"""Questions with their answers and contexts, in the files of InstructRetro: a JSON list, or one object per line.

``{"question": ..., "answer": ...}``                        an answer, or ``answers``: several that are right
``{..., "ctxs": [{"title": ..., "text": ...}, ...]}``       passages that were found for the question, the best first
``{..., "sub-paragraphs": ...}``                            the passage that the question is about, or [title, passage]
``{..., "qa_type": "multi_choice_qa", "multichoice_options": [...]}``    what to choose from
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from megads.data.tasks.examples import lines_of, object_of
from megads.errors import DataError
from megads.storage.reading import read_json

MOST_BYTES = 4 << 30
"""Of a file that is one JSON list: questions with a hundred passages each."""
PASSAGE_KEYS = ("sub-paragraphs", "sub_paragraph")
_EXPECTED = 'expected {"question": ..., "answer": ...}'


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        text: with the options to choose from, if there are any.
        answers: those that are right, the first one is trained on; empty: not known.
        contexts: texts ``title: TITLE, source: PASSAGE``, the best first.
        where: ``FILE:12``.
    """

    text: str
    answers: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    where: str = ""


def is_question(record: Mapping[str, Any]) -> bool:
    """Return whether a record is of this format."""
    return "question" in record


def read_questions(path: str) -> list[Question]:
    """Return the questions of a file, which may be compressed if it has one object per line.

    Raises:
        DataError: the file cannot be read, has no question, or one is wrong.
    """
    found = [question_of(record, where) for where, record in _records(path)]
    if not found:
        raise DataError(f"{path}: has no questions; {_EXPECTED}")
    return found


def _records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, line in lines_of(path):
        if line.lstrip().startswith("["):
            yield from _list(path)
            return
        if line.strip():
            yield where, object_of(where, line, f"an object: {_EXPECTED}")


def _list(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        found = read_json(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    for place, record in enumerate(found):
        if not isinstance(record, dict):
            raise DataError(f"{path}: item {place + 1} is not an object; {_EXPECTED}")
        yield f"{path}: item {place + 1}", record


def question_of(record: Mapping[str, Any], where: str) -> Question:
    """Return the question in a record.

    Raises:
        DataError: it has none, or what belongs to it is of a wrong type.
    """
    text = record.get("question")
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: question is {text!r:.60}; {_EXPECTED}")
    if record.get("qa_type") == "multi_choice_qa":
        text = f"{text}\n{_options(record, where)}"
    return Question(text, _answers(record, where), _contexts(record, where), where)


def _options(record: Mapping[str, Any], where: str) -> str:
    options = record.get("multichoice_options")
    if not isinstance(options, list) or len(options) < 2 or not all(isinstance(each, str) for each in options):
        raise DataError(f"{where}: multichoice_options is {options!r:.60}; expected two or more texts")
    laid = " ".join(f"({chr(ord('A') + place)}) {option}" for place, option in enumerate(options))
    return laid


def _answers(record: Mapping[str, Any], where: str) -> tuple[str, ...]:
    name = next((name for name in ("answers", "answer", "longform_answer") if name in record), "")
    if not name or record[name] is None:
        return ()
    given = record[name] if isinstance(record[name], list) else [record[name]]
    found = []
    for each in given:
        text = each.get("text") if isinstance(each, dict) else each
        if isinstance(text, (bool, dict, list)) or text is None:
            raise DataError(f'{where}: {name} holds {each!r:.60}; expected a text or {{"text": ...}}')
        found.append(str(text).strip())
    return tuple(found)


def _contexts(record: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the passages as texts."""
    if "ctxs" in record:
        return _passages(record["ctxs"], where)
    name = next((name for name in PASSAGE_KEYS if record.get(name) is not None), "")
    if not name:
        return ()
    value = record[name]
    if isinstance(value, str):
        return (context_text("", value),)
    if isinstance(value, list) and len(value) >= 2 and all(isinstance(each, str) for each in value[:2]):
        return (context_text(value[0], value[1]),)
    raise DataError(f"{where}: {name} is {value!r:.60}; expected a text, or [title, text]")


def _passages(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise DataError(f'{where}: ctxs is {value!r:.60}; expected a list of {{"title": ..., "text": ...}}')
    found = []
    for each in value:
        if isinstance(each, str):
            found.append(context_text("", each))
            continue
        title, text = (each.get("title") or "", each.get("text")) if isinstance(each, dict) else ("", None)
        if not isinstance(text, str) or not isinstance(title, str):
            raise DataError(f'{where}: ctxs holds {each!r:.60}; expected {{"title": ..., "text": ...}}')
        found.append(context_text(title, text))
    return tuple(found)


def context_text(title: str, text: str) -> str:
    """Return a passage as it is shown to a model."""
    return f"title: {title}, source: {text}"
