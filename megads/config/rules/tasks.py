"""Rules of the tasks that a run is measured by while it trains. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megads.config.rules.advice import Problem
from megads.config.schema import RunConfig
from megads.families.table import FAMILIES


def _tasks(run: RunConfig, world_size: int) -> Iterator[Problem]:
    tasks = run.tasks
    files = tasks.list()
    if tasks.interval and not files:
        text = f"EVAL_TASKS_INTERVAL={tasks.interval} and no EVAL_TASKS: there is nothing to score"
        yield Problem(text, [{"tasks.interval": 0}], "name texts, e.g. EVAL_TASKS=wikitext103:wiki.test.tokens")
    is_other = run.finetune.task not in ("", "chat") or FAMILIES[run.model.family].samples != "causal"
    if files and is_other:
        model = f"TASK={run.finetune.task}" if run.finetune.task else f"a model of MODEL_FAMILY={run.model.family}"
        text = f"EVAL_TASKS={tasks.files}: {model} does not predict a text from its beginning"
        yield Problem(text, [{"tasks.files": "", "tasks.interval": 0}], overridable=("tasks.files",))
    if tasks.stride > run.model.seq_length and any(each.task == "wikitext103" for each in files):
        text = f"OVERLAPPING_EVAL={tasks.stride} is more than the context of SEQ={run.model.seq_length} tokens"
        yield Problem(text, [{"tasks.stride": min(32, run.model.seq_length)}], overridable=("tasks.stride",))


RULES: tuple[Callable[[RunConfig, int], Iterator[Problem]], ...] = (_tasks,)
