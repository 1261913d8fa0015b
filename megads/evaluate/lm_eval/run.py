"""Tasks by their names, on a model that is open."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megads.errors import ConfigError, DataError, DependencyError, MegadsError
from megads.evaluate.lm_eval.jobs import follow
from megads.inference.session import Session

CURE = "nothing is downloaded: use tasks of local files, or fetch the data set before, with HF_DATASETS_OFFLINE=0"


@dataclass(frozen=True)
class HarnessOptions:
    """What lm-eval is to run.

    Attributes:
        tasks: names of tasks, groups or tags, or files of tasks.
        include_path: a folder with tasks of the user's own.
        num_fewshot: examples before each question; None: as the task says.
        limit: documents of each task, or the part of them if below 1; None: all.
        gen_kwargs: settings of generation instead of the task's.
        chat: whether questions are put as chats, with the model's chat template.
        log_samples: whether the results have every document and answer.
        batch: texts at a time, on every replica.
    """

    tasks: tuple[str, ...]
    include_path: Path | None = None
    num_fewshot: int | None = None
    limit: float | None = None
    gen_kwargs: str = ""
    chat: bool = False
    log_samples: bool = False
    batch: int = 16


def evaluate(session: Session, wanted: HarnessOptions) -> dict[str, Any] | None:
    """Return lm-eval's results on rank 0, elsewhere nothing. All ranks call it.

    Raises:
        ConfigError: a task does not exist, or the model cannot do what one asks for.
        DataError: the files of a task cannot be used.
    """
    if not session.speaks:
        follow(session)
        return None
    from megads.evaluate.lm_eval.model import MegadsLM

    model = MegadsLM(session=session, batch_size=wanted.batch)
    error: MegadsError | None = MegadsError("rank 0 has failed")
    try:
        results = _evaluate(model, wanted)
        error = None
    except MegadsError as problem:
        error = problem
        raise
    finally:
        model.close(error)
    return results


def check_package() -> None:
    """Check that lm-eval is installed; DependencyError if not."""
    if importlib.util.find_spec("lm_eval") is None:
        raise DependencyError("megads evaluate --tasks needs lm-eval; pip install -e '.[lm-eval]' in the checkout")


def _evaluate(model: Any, wanted: HarnessOptions) -> dict[str, Any]:
    import lm_eval
    from datasets.exceptions import DatasetsError

    manager = _manager(wanted)
    try:
        results: dict[str, Any] = lm_eval.simple_evaluate(
            model=model,
            tasks=list(wanted.tasks),
            task_manager=manager,
            num_fewshot=wanted.num_fewshot,
            limit=wanted.limit,
            gen_kwargs=wanted.gen_kwargs or None,
            apply_chat_template=wanted.chat,
            log_samples=wanted.log_samples,
            batch_size=wanted.batch,
        )
    except (OSError, DatasetsError) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise DataError(f"--tasks {','.join(wanted.tasks)}: {reason}; {CURE}") from None
    return results


def _manager(wanted: HarnessOptions) -> Any:
    """Return what finds the tasks; lm-eval's own 10,000 are only read if one of them is asked for."""
    from lm_eval.tasks import TaskManager

    include = None if wanted.include_path is None else str(wanted.include_path)
    if include is not None and not Path(include).is_dir():
        raise ConfigError(f"--include-path {include}: no such folder")
    manager = TaskManager(include_path=include, include_defaults=False)
    if not all(name in manager.all_tasks or _is_file(name) for name in wanted.tasks):
        manager = TaskManager(include_path=include)
    if missing := [name for name in wanted.tasks if not (name in manager.task_index or _is_file(name))]:
        raise ConfigError(f"--tasks {','.join(missing)}: no such task; `lm-eval ls tasks` lists lm-eval's own")
    return manager


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) and Path(name).is_file()


def table(results: dict[str, Any]) -> str:
    """Return results as lm-eval prints them."""
    from lm_eval.utils import make_table

    return "\n".join(make_table(results, each) for each in ("results", "groups") if each in results)


def as_json(results: dict[str, Any]) -> str:
    """Return results as JSON."""
    from lm_eval.utils import handle_non_serializable

    return json.dumps(results, indent=2, default=handle_non_serializable, ensure_ascii=False)
