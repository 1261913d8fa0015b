"""Whether the files of EVAL_TASKS can be scored; before any rank is started."""

from __future__ import annotations

from megads.config.schema import RunConfig


def check_task_files(run: RunConfig) -> None:
    """Read every file of EVAL_TASKS; what only its tokens show is found when rank 0 tokenizes it.

    Raises:
        ConfigError, DataError: a file is not there, is not text, or lacks what its task needs.
    """
    files = run.tasks.list()
    if not files:
        return
    from megads.evaluate.tasks import check_file

    for file in files:
        check_file(file.task, file.path)
