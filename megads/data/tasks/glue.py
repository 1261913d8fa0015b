"""MNLI and QQP as GLUE publishes them: a head line, then one example per line, columns between tabs."""

from __future__ import annotations

from megads.data.tasks.examples import Example, TaskFile, clean_text, lines_of, require_examples
from megads.errors import DataError
from megads.text.plural import plural

MNLI_CLASSES = ("contradiction", "entailment", "neutral")
QQP_CLASSES = ("0", "1")

_MNLI_TEST, _MNLI_LEAST = 10, 11  # columns of a file without labels; of one with labels at least
_QQP_TEST, _QQP = 3, 6
_NO_LABELS = "a test file without labels; pass it with --test-data, or a dev or train file here"


def read_mnli(path: str, *, needs_labels: bool = True) -> TaskFile:
    """Read MNLI: column 0 is a number, 8 and 9 are premise and hypothesis, the last one is the label.

    Raises:
        DataError: the file cannot be read, has no labels (10 columns) and needs them, or a line is broken.
    """
    examples: list[Example] = []
    columns = 0
    for number, (where, line) in enumerate(lines_of(path)):
        row = line.split("\t")
        if number == 0:
            columns = len(row)
            _check_head(where, row[0])
            if columns == _MNLI_TEST and needs_labels:
                raise DataError(f"{where}: {_MNLI_TEST} columns, {_NO_LABELS}")
            if columns < _MNLI_TEST:
                raise DataError(
                    f"{where}: {plural(len(row), 'column')} between tabs; expected the head of an MNLI file, with "
                    f"{_MNLI_LEAST} or more"
                )
            continue
        if not line.strip():
            continue
        if len(row) != columns:
            raise DataError(
                f"{where}: {plural(len(row), 'column')} between tabs; expected {columns} as in the head line, with "
                "premise (8), hypothesis (9), and the label at the end"
            )
        _check_number(where, row[0])
        premise, hypothesis = clean_text(row[8].strip()), clean_text(row[9].strip())
        label = row[-1].strip() if columns > _MNLI_TEST else MNLI_CLASSES[0]
        if not premise or not hypothesis:
            raise DataError(f"{where}: the {'hypothesis' if premise else 'premise'} is empty")
        if label not in MNLI_CLASSES:
            raise DataError(f"{where}: label {label!r:.40}; expected {', '.join(MNLI_CLASSES)}")
        examples.append(Example(((premise, hypothesis),), MNLI_CLASSES.index(label)))
    require_examples(path, examples)
    return TaskFile(path, examples, has_labels=columns > _MNLI_TEST)


def read_qqp(path: str, *, needs_labels: bool = True) -> TaskFile:
    """Read QQP: column 0 is a number, 3 and 4 are the questions, 5 is 1 for duplicates and else 0.

    A file without labels has the questions in columns 1 and 2. There no line is skipped: each needs an answer.

    As in Megatron-LM a line that has not six columns, or an empty question, is skipped: the published
    files have some. A note says how many.

    Raises:
        DataError: the file cannot be read, has no labels (3 columns) and needs them, or a label or number is wrong.
    """
    examples: list[Example] = []
    skipped: list[str] = []
    columns = 0
    for number, (where, line) in enumerate(lines_of(path)):
        row = line.strip().split("\t")
        if number == 0:
            _check_head(where, row[0])
            columns = len(row)
            if columns == _QQP_TEST and needs_labels:
                raise DataError(f"{where}: {_QQP_TEST} columns, {_NO_LABELS}")
            if columns not in (_QQP_TEST, _QQP):
                raise DataError(
                    f"{where}: {plural(len(row), 'column')} between tabs; expected the head of a QQP file, with {_QQP}"
                )
            continue
        if columns == _QQP_TEST:
            if line.strip():
                examples.append(_unlabelled(where, line.split("\t")))
            continue
        first, second = (clean_text(text.strip()) for text in row[3:5]) if len(row) == _QQP else ("", "")
        if not first or not second:
            skipped.append(where)
            continue
        _check_number(where, row[0])
        label = row[5].strip()
        if label not in QQP_CLASSES:
            raise DataError(f"{where}: is_duplicate is {label!r:.40}; expected 0 or 1")
        examples.append(Example(((first, second),), int(label)))
    require_examples(path, examples)
    why = f"not {_QQP} columns, or an empty question"
    note = f"{path}: {plural(len(skipped), 'line')} skipped, {skipped[0]} first ({why})" if skipped else ""
    return TaskFile(path, examples, (note,) if note else (), has_labels=columns == _QQP)


def _unlabelled(where: str, row: list[str]) -> Example:
    """Return the questions of a line of a QQP file without labels; an empty one is a text, too."""
    if len(row) != _QQP_TEST:
        raise DataError(f"{where}: {plural(len(row), 'column')} between tabs; expected {_QQP_TEST} as in the head line")
    _check_number(where, row[0])
    return Example(((clean_text(row[1].strip()), clean_text(row[2].strip())),), 0)


def _check_head(where: str, text: str) -> None:
    if text.strip().isdecimal():
        raise DataError(f"{where}: an example in place of the head line; begin the file with the names of its columns")


def _check_number(where: str, text: str) -> None:
    number = text.strip()
    if not (number.isascii() and number.isdecimal()):
        raise DataError(f"{where}: the first column is {number!r:.40}; expected the number of the example")
