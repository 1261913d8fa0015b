"""What a model makes of every example of a file, as JSON lines in the run folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from megads.data.tasks.samples import FileSamples
from megads.data.tasks.task import Task, short_names
from megads.errors import DataError
from megads.storage.open_file import write_cure
from megads.train.task_scores import Answer

FOLDER = "predictions"
"""Of a run."""


def prediction_files(run_dir: Path, files: Sequence[FileSamples]) -> list[Path]:
    """Return where the predictions of each of ``files`` are written; all names differ."""
    names: list[str] = []
    for short in short_names([each.file.path for each in files]):
        stem, count = short.replace("/", "-").strip("-.").removesuffix(".jsonl"), 1
        name = f"{stem}.jsonl"
        while name in names:
            count += 1
            name = f"{stem}.{count}.jsonl"
        names.append(name)
    return [run_dir / FOLDER / name for name in names]


def prediction_lines(task: Task, samples: FileSamples, answers: Sequence[Answer]) -> Iterator[str]:
    """Yield a JSON object per example, in the order of the file: what is predicted, and the label if it has one."""

    def name_of(number: int) -> str | int:
        return task.classes[number] if task.classes else number

    for index, (answer, example) in enumerate(zip(answers, samples.file.examples, strict=True)):
        row = {"index": index, "predicted": name_of(answer.predicted), "probability": round(answer.probability, 6)}
        if samples.file.has_labels:
            row["label"] = name_of(example.label)
        yield json.dumps(row, ensure_ascii=False) + "\n"


def write_predictions(path: Path, task: Task, samples: FileSamples, answers: Sequence[Answer]) -> None:
    """Write the predictions of a file; it appears whole or not at all.

    Raises:
        DataError: it cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_name(f".{path.name}")
        with open(unfinished, "w", encoding="utf-8") as file:
            file.writelines(prediction_lines(task, samples, answers))
        os.replace(unfinished, path)
    except OSError as error:
        cure = write_cure(error, "set RUN_DIR")
        raise DataError(f"{path}: cannot be written: {str(error.strerror).lower()}; {cure}") from None
