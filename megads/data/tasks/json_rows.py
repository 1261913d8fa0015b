"""A user's own task: one JSON object per line.

``{"text": ..., "label": ...}``                          one text to classify
``{"premise": ..., "hypothesis": ..., "label": ...}``    two texts to classify
``{"text": ..., "question": ..., "choices": [...], "label": 2}``    which choice is right; the question may be absent

Labels of classes are texts, whole numbers or booleans; the label of choices is the number of the right one, from 0.
Files to predict may lack it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from megads.data.tasks.examples import Example, TaskFile, clean_text, lines_of, object_of, require_examples
from megads.data.tasks.race import with_answer
from megads.errors import DataError
from megads.text.plural import plural

MOST_CLASSES = 10_000
KEYS = "text; premise and hypothesis; or text, question and choices"


class JsonRows(NamedTuple):
    """The files of a task, read together."""

    files: list[TaskFile]  # with labels, then those to predict
    classes: tuple[str, ...]  # names, in the order of their numbers; empty for choices
    choices: int  # of every example; 1 for classes


class _Row(NamedTuple):
    where: str
    pairs: tuple[tuple[str, str | None], ...]
    label: str | int | bool | None  # None: it has none
    is_choice: bool


class _File(NamedTuple):
    path: str
    rows: list[_Row]


def read_json_rows(
    train: Sequence[str], valid: Sequence[str], test: Sequence[str] = (), classes: tuple[str, ...] = ()
) -> JsonRows:
    """Read the files of a task.

    Args:
        train: files with labels.
        valid: files with labels, too; one that is in both is read once.
        test: files that need none.
        classes: their names; empty: the labels of the training files (of all files without one), sorted.

    Raises:
        DataError: a file cannot be read, a line is broken, or a label is not one of the classes.
    """
    labelled = list(dict.fromkeys([*train, *valid]))
    files = [_File(path, _read(path, needs_labels=True)) for path in labelled]
    files += [_File(path, _read(path, needs_labels=False)) for path in test]
    every = [row for file in files for row in file.rows]
    first = every[0]
    for row in every:
        if row.is_choice != first.is_choice or len(row.pairs) != len(first.pairs):
            raise DataError(f"{row.where}: {_kind(row)}, and {first.where} {_kind(first)}; all must be alike")
    if first.is_choice:
        return JsonRows([_numbered(file, _number, cuts_first=True) for file in files], (), len(first.pairs))
    chosen = [*(train or valid or test)]
    given = [row for file in files for row in file.rows if file.path in chosen and row.label is not None]
    what = "the classes, which are" if classes else "the training files', which are"
    classes = classes or _classes(given, first)
    number = {name: at for at, name in enumerate(classes)}

    def number_of(row: _Row) -> int:
        name = _name(row.label)
        if name not in number:
            raise DataError(f"{row.where}: label {name!r:.60} is not one of {what} {', '.join(classes[:8])}")
        return number[name]

    return JsonRows([_numbered(file, number_of, cuts_first=False) for file in files], classes, 1)


def _numbered(file: _File, number_of: Callable[[_Row], int], *, cuts_first: bool) -> TaskFile:
    """Return a file with the numbers of its labels."""
    has_labels = file.rows[0].label is not None
    found = [Example(row.pairs, number_of(row) if has_labels else 0, cuts_first=cuts_first) for row in file.rows]
    return TaskFile(file.path, found, has_labels=has_labels)


def _kind(row: _Row) -> str:
    return f"has {plural(len(row.pairs), 'choice')}" if row.is_choice else "has none"


def _classes(rows: list[_Row], first: _Row) -> tuple[str, ...]:
    if not rows:
        raise DataError(
            f"{first.where}: no file has labels, so the classes are not known; pass --load RUN, or set TASK_CLASSES"
        )
    names = {_name(row.label) for row in rows}
    if len(names) < 2:
        raise DataError(f"{rows[0].where}: every label is {rows[0].label!r:.60}; a task has at least two classes")
    if len(names) > MOST_CLASSES:
        raise DataError(f"{rows[0].where}: {len(names)} classes; at most {MOST_CLASSES} are possible")
    if all(name.isascii() and name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name)))
    return tuple(sorted(names))


def _name(label: str | int | bool | None) -> str:
    return str(label).lower() if isinstance(label, bool) else clean_text(str(label)).strip()


def _read(path: str, *, needs_labels: bool) -> list[_Row]:
    rows: list[_Row] = []
    for where, line in lines_of(path):
        if line.strip():
            row = _row(where, line, needs_label=needs_labels)
            if rows and (row.label is None) != (rows[0].label is None):
                has, others = ("no label", "have one") if row.label is None else ("a label", "have none")
                raise DataError(f"{where}: has {has}, and the lines before it {others}; give all of a file, or none")
            rows.append(row)
    require_examples(path, [Example(row.pairs, 0) for row in rows[:1]])
    return rows


def _row(where: str, line: str, *, needs_label: bool) -> _Row:
    found = object_of(where, line, 'an object such as {"text": ..., "label": ...}')
    label = found.get("label")
    has_none = not needs_label and label is None
    if not has_none and (not isinstance(label, (str, int)) or not str(label).strip()):
        raise DataError(f"{where}: label is {label!r:.40}; expected a text, a whole number, true or false")
    others = [name for name in ("premise", "hypothesis") if name in found]
    if others and ("text" in found or "choices" in found):
        raise DataError(f"{where}: has {others[0]} besides text or choices; expected {KEYS}")
    if "choices" in found:
        return _Row(where, _choices(where, found), label, is_choice=True)
    if "premise" in found or "hypothesis" in found:
        pair: tuple[str, str | None] = (_text(where, found, "premise"), _text(where, found, "hypothesis"))
    elif "text" in found:
        pair = (_text(where, found, "text"), None)
    else:
        raise DataError(f"{where}: has {', '.join(map(str, found))[:80]}; expected label, and {KEYS}")
    return _Row(where, (pair,), label, is_choice=False)


def _choices(where: str, found: dict[str, Any]) -> tuple[tuple[str, str | None], ...]:
    choices = found["choices"]
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(each, str) and each for each in choices):
        raise DataError(f"{where}: choices are not two or more texts")
    question = _text(where, found, "question") if "question" in found else ""
    context = _text(where, found, "text") if "text" in found else None
    if not question and context is None:
        raise DataError(f"{where}: choices without a text or a question")
    return tuple((with_answer(question, each) if question else clean_text(each), context) for each in choices)


def _text(where: str, found: dict[str, Any], name: str) -> str:
    text = found.get(name)
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: {name} is {text!r:.40}; expected a text")
    return clean_text(text.strip())


def _number(row: _Row) -> int:
    label, count = row.label, len(row.pairs)
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < count:
        raise DataError(f"{row.where}: label {label!r:.40}; expected the number of the right choice, 0 to {count - 1}")
    return label
