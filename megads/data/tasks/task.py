"""The tasks by name, and the one that a run names: its files, classes and choices."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from megads.config.settings.finetune import FinetuneConfig
from megads.data.tasks.examples import TaskFile
from megads.data.tasks.glue import MNLI_CLASSES, QQP_CLASSES, read_mnli, read_qqp
from megads.data.tasks.json_rows import read_json_rows
from megads.data.tasks.race import CHOICES, read_race
from megads.errors import ConfigError


@dataclass(frozen=True)
class Task:
    """A task with its files, read."""

    name: str
    train: tuple[TaskFile, ...]
    valid: tuple[TaskFile, ...]
    classes: tuple[str, ...]  # names; empty for choices
    choices: int  # pairs of texts of every example; 1 for classes
    test: tuple[TaskFile, ...] = ()  # to predict; their labels, where they have some, are not used

    @property
    def num_outputs(self) -> int:
        """Outputs of the model's head: a score for each class, or one for a choice."""
        return len(self.classes) or 1

    @property
    def has_f1(self) -> bool:
        """Whether F1 of the last class is reported: there are two."""
        return len(self.classes) == 2

    @property
    def num_train(self) -> int:
        """Examples to train on."""
        return sum(len(each.examples) for each in self.train)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines worth showing to the user."""
        return tuple(note for each in (*self.train, *self.valid, *self.test) for note in each.notes)

    def fingerprint(self) -> str:
        """Return what differs when a file's name or an example does: a resumed run compares it."""
        digest = hashlib.blake2b(digest_size=8)
        for file in (*self.train, *self.valid):
            digest.update(json.dumps([os.path.basename(file.path), len(file.examples)]).encode())
            for example in file.examples:
                digest.update(json.dumps([example.pairs, example.label]).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class _Published:
    """A task with a format of its own."""

    read: Callable[..., TaskFile]
    classes: tuple[str, ...] = ()
    choices: int = 1


PUBLISHED = {
    "MNLI": _Published(read_mnli, MNLI_CLASSES),
    "QQP": _Published(read_qqp, QQP_CLASSES),
    "RACE": _Published(read_race, choices=CHOICES),
}


def paths_of(text: str) -> tuple[str, ...]:
    """Return the files that a setting names: words as a shell reads them."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{text}: {str(error).lower()}; quote a path with blanks") from None


def read_task(given: FinetuneConfig) -> Task:
    """Read the files that a run names.

    Raises:
        ConfigError: it names no task, no files, or other classes than the task has.
        DataError: a file is missing or broken.
    """
    if not given.task:
        raise ConfigError("no task is named; pass --task MNLI, QQP, RACE or jsonl")
    train, valid, test = (paths_of(text) for text in (given.train_data, given.valid_data, given.test_data))
    if not train and given.epochs:
        raise ConfigError(f"TASK={given.task} has no files to train on; pass --train-data FILE, or --epochs 0")
    if not (train and given.epochs) and not valid and not test:
        raise ConfigError(f"TASK={given.task} has no files to score; pass --valid-data FILE or --test-data FILE")
    twice = [path for paths in (train, valid, test) for path in paths if paths.count(path) > 1]
    if twice:
        raise ConfigError(f"{twice[0]} is named twice; name every file once")
    classes = paths_of(given.classes)
    if (twice := [name for name in classes if classes.count(name) > 1]) or len(classes) == 1:
        what = f"{twice[0]} is named twice" if twice else "a task has at least two classes"
        raise ConfigError(f"TASK_CLASSES={given.classes}: {what}; name every class once")
    found = _read(given.task, train, valid, test, classes)
    if classes and classes != found.classes:
        has = f"has the classes {' '.join(found.classes)}" if found.classes else "has choices, no classes"
        raise ConfigError(f"TASK_CLASSES={given.classes:.80}: TASK={given.task} {has}; leave it unset")
    return found


@functools.lru_cache(maxsize=1)
def _read(
    name: str, train: tuple[str, ...], valid: tuple[str, ...], test: tuple[str, ...], classes: tuple[str, ...]
) -> Task:
    """Read the files, once in a process: the launcher asks several times."""
    if name == "jsonl":
        rows = read_json_rows(train, valid, test, classes)
        files = rows.files[: len(rows.files) - len(test)]
        found = {each.path: each for each in files}
        tests, classes, choices = tuple(rows.files[len(files) :]), rows.classes, rows.choices
    else:
        row = PUBLISHED[name]
        found = {path: row.read(path) for path in dict.fromkeys((*train, *valid))}
        tests = tuple(row.read(path, needs_labels=False) for path in test)
        classes, choices = row.classes, row.choices
    return Task(name, _of(found, train), _of(found, valid), classes, choices, tests)


def _of(found: dict[str, TaskFile], paths: Sequence[str]) -> tuple[TaskFile, ...]:
    return tuple(found[path] for path in paths)


def short_names(paths: Sequence[str]) -> list[str]:
    """Return a short name for each of ``paths``, all different: of as many folders as that takes."""
    for count in range(1, 20):
        names = ["/".join([part for part in path.split("/") if part][-count:]) or path for path in paths]
        if len(set(names)) == len(names):
            return names
    return list(paths)
