"""RACE as it is published: a folder of .txt files, each with one article, its questions and four options per question.

A file holds one JSON object per line: ``{"article": ..., "questions": [...], "options": [[4 texts], ...],
"answers": ["A", ...]}``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from megads.data.tasks.examples import Example, TaskFile, clean_text, lines_of, object_of, require_examples
from megads.errors import DataError

CHOICES = 4
MAX_QUESTION = 128
"""Tokens of a question with its answer; the article gets what is left of the sample."""


def read_race(path: str, *, needs_labels: bool = True) -> TaskFile:
    """Read every ``.txt`` file of a folder, in the order of their names.

    (Megatron-LM takes them in the order of the file system, which differs from host to host.)

    Raises:
        DataError: a folder or file is missing, a line is broken, or has no answers where they are needed or others do.
    """
    if not os.path.isdir(path):
        raise DataError(f"{path}: not a folder; RACE is a folder of .txt files, e.g. RACE/train/middle")
    names = sorted(name for name in os.listdir(path) if name.endswith(".txt"))
    if not names:
        raise DataError(f"{path}: holds no .txt file; RACE is a folder of them, e.g. RACE/train/middle")
    examples: list[Example] = []
    has_labels: bool | None = True if needs_labels else None
    for name in names:
        for where, line in lines_of(os.path.join(path, name)):
            if line.strip():
                found = object_of(where, line, "an object of RACE")
                has_labels = "answers" in found if has_labels is None else has_labels
                examples += _examples(where, found, has_labels)
    require_examples(path, examples)
    return TaskFile(path, examples, has_labels=bool(has_labels))


def with_answer(question: str, answer: str) -> str:
    """Return a question with its answer: in place of ``_``, else behind it."""
    return clean_text(question.replace("_", answer) if "_" in question else f"{question} {answer}")


def _examples(where: str, found: dict[str, Any], has_labels: bool) -> Iterator[Example]:
    if not has_labels and "answers" in found:
        raise DataError(f"{where}: has answers, and those before it have none; give all of a folder, or none")
    article = found.get("article")
    if not isinstance(article, str):
        raise DataError(f"{where}: no text under 'article'; expected an object of RACE")
    questions, options = (_list(where, found, name) for name in ("questions", "options"))
    answers = _list(where, found, "answers") if has_labels else ["A"] * len(questions)
    if not len(questions) == len(options) == len(answers):
        raise DataError(
            f"{where}: {len(questions)} questions, {len(options)} lists of options and {len(answers)} answers"
        )
    context = clean_text(article)
    for number, (question, choices, answer) in enumerate(zip(questions, options, answers, strict=True), 1):
        if not isinstance(question, str):
            raise DataError(f"{where}: question {number} is not a text")
        if not isinstance(choices, list) or len(choices) != CHOICES or not all(isinstance(c, str) for c in choices):
            raise DataError(f"{where}: the options of question {number} are not {CHOICES} texts")
        if answer not in ("A", "B", "C", "D"):
            raise DataError(f"{where}: the answer of question {number} is {answer!r:.40}; expected A, B, C or D")
        pairs = tuple((with_answer(question, choice), context) for choice in choices)
        yield Example(pairs, ord(answer) - ord("A"), cuts_first=True)


def _list(where: str, found: dict[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    if not isinstance(value, list):
        raise DataError(f"{where}: no list under {name!r}; expected an object of RACE")
    return value
