"""Settings of the tasks that a run is measured by while it trains."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from megads.config.setting import Section, in_steps, setting
from megads.errors import ConfigError

TASKS = ("wikitext103", "lambada", "loss")
"""What a task may be; ``megads.evaluate.tasks`` says how each is computed."""

_NAMED = re.compile(r"(?:^|,)\s*([A-Za-z][A-Za-z0-9_-]*):")


@dataclass(frozen=True)
class TaskFile:
    """A task of a run."""

    task: str  # one of TASKS
    path: Path
    label: str  # the task, or TASK.FILE where a run has several of one task; names its rows of metrics.jsonl


class TasksConfig(Section):
    """Texts that the model is scored on while it trains, as ``megads evaluate`` does."""

    files: str = setting(
        "", "EVAL_TASKS", "texts to score while training: TASK:FILE,...; tasks: wikitext103, lambada, loss"
    )
    interval: int = in_steps(
        0, "EVAL_TASKS_INTERVAL", "steps between scores of EVAL_TASKS; they are scored at the end, too; 0: only then"
    )
    stride: int = setting(
        32, "OVERLAPPING_EVAL --overlapping-eval", "wikitext103: tokens between two windows", unit="tokens", gt=0
    )
    strict_lambada: bool = setting(
        False, "STRICT_LAMBADA --strict-lambada", "lambada: the whole last word must be right, not its last token"
    )

    def list(self) -> list[TaskFile]:
        """Return the tasks of EVAL_TASKS.

        Raises:
            ConfigError: it is not understood.
        """
        return parse_tasks(self.files)


def parse_tasks(text: str, name: str = "EVAL_TASKS=") -> list[TaskFile]:
    """Return the tasks of ``wikitext103:FILE,loss:FILE``; a file name may contain commas and colons.

    ``name`` is what the user wrote in front of it.

    Raises:
        ConfigError: the text is not that.
    """
    if not text.strip():
        return []
    found = list(_NAMED.finditer(text))
    if not found or found[0].start():
        raise ConfigError(f"{name}{text}: expected TASK:FILE,..., e.g. wikitext103:wiki.test.tokens")
    ends = [each.start() for each in found[1:]] + [len(text)]
    named = [(each[1].lower(), text[each.end() : end].strip()) for each, end in zip(found, ends, strict=True)]
    for task, path in named:
        if task not in TASKS:
            raise ConfigError(f"{name}{text}: no task is called {task}; the tasks are {', '.join(TASKS)}")
        if not path:
            raise ConfigError(f"{name}{text}: {task} has no file; write {task}:FILE")
    tasks = [task for task, _ in named]
    files = [
        TaskFile(task, Path(path), f"{task}.{Path(path).stem}" if tasks.count(task) > 1 else task)
        for task, path in named
    ]
    labels = [each.label for each in files]
    if same := next((each for each in files if labels.count(each.label) > 1), None):
        raise ConfigError(
            f"{name}{text}: two files would be reported as {same.label}; name files of one task differently"
        )
    return files
