"""The answers of a model in a file, and their scores over a file of questions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from megads.data.qa.questions import Question
from megads.data.tasks.examples import lines_of, object_of
from megads.errors import DataError
from megads.evaluate.qa.scores import exact_match, overlap
from megads.text.plural import plural

KEYS = ("text", "pred", "prediction")
"""Where an object has the answer: ``text`` is that of `megads generate`."""
END_OF_TEXT = "<|endoftext|>"
_BEGINNINGS = ("answer:", "a:")


def read_predictions(path: str) -> list[str]:
    """Return the answers in a file: of ``*.jsonl`` and ``*.json`` one object per line, else a text per line.

    A blank line of texts is an empty answer.

    Raises:
        DataError: the file cannot be read, is empty, or a line is wrong.
    """
    is_json = path.endswith((".jsonl", ".json", ".jsonl.gz"))
    found = [
        _prediction(where, line) if is_json else line for where, line in lines_of(path) if line.strip() or not is_json
    ]
    if not found:
        raise DataError(f"{path}: has no predictions")
    return found


def _prediction(where: str, line: str) -> str:
    expected = 'an object with "text" or "pred"'
    record = object_of(where, line, expected)
    text = next((record[key] for key in KEYS if key in record), None)
    if not isinstance(text, str):
        raise DataError(f"{where}: expected {expected}")
    return text


def clean(prediction: str) -> str:
    """Return an answer without what surrounds it: blanks, the end of text, and ``Answer:`` before it."""
    text = prediction.split(END_OF_TEXT, 1)[0].strip()
    for beginning in _BEGINNINGS:
        if text.lower().startswith(beginning):
            return text[len(beginning) :].strip()
    return text


def score(predictions: Sequence[str], questions: Sequence[Question], where: str) -> dict[str, Any]:
    """Return the scores of ``predictions``, which are for the first of ``questions``, in the same order.

    ``f1``, ``precision`` and ``recall`` are of words, with the first answer of each question, as InstructRetro has
    it; ``f1_best`` with the best of several answers, as ParlAI and SQuAD have it; ``exact_match`` is whether the
    prediction is one of the answers. All are means over the questions that have an answer.

    Args:
        where: the file of predictions.

    Raises:
        DataError: there are more predictions than questions, or no question has an answer.
    """
    if len(predictions) > len(questions):
        raise DataError(
            f"{where}: has {plural(len(predictions), 'prediction')}, and the file of questions "
            f"{len(questions)}; pass the file that the predictions are for"
        )
    first, best, exact = [], [], []
    for prediction, question in zip(map(clean, predictions), questions, strict=False):
        found = [each for answer in question.answers if (each := overlap(prediction, answer))]
        if question.answers and (each := overlap(prediction, question.answers[0])):
            first.append(each)
        if found:
            best.append(max(each.f1 for each in found))
        if question.answers:
            exact.append(exact_match(prediction, question.answers))
    if not first:
        raise DataError(f"{where}: none of the {plural(len(predictions), 'question')} has an answer to score with")
    return {
        "questions": len(predictions),
        "scored": len(first),
        "f1": fmean(each.f1 for each in first),
        "precision": fmean(each.precision for each in first),
        "recall": fmean(each.recall for each in first),
        "f1_best": fmean(best),
        "exact_match": fmean(exact),
    }
