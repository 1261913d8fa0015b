"""``megads evaluate``: a trained model's perplexity and accuracy on texts."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click

from megads.cli.generate import degrees_of, is_rank, model_options, session_request, start_ranks
from megads.cli.harness import evaluate_tasks, harness_options, write_result
from megads.cli.options.request import absolute
from megads.cli.progress_bar import bar
from megads.errors import ConfigError


@click.command()
@model_options
@click.option("--task", default="loss", show_default=True, help="wikitext103, lambada or loss.")
@click.option("--data", "--valid-data", "path", metavar="FILE", help="The text: see docs/evaluation.md.")
@click.option("--overlapping-eval", "stride", type=int, default=32, show_default=True, help="wikitext103: stride.")
@click.option("--strict-lambada", "is_strict", is_flag=True, help="lambada: the whole last word, not its last token.")
@click.option("--json", "--output", "--output_path", "target", metavar="FILE", help="Write the numbers there, too.")
@harness_options
def evaluate(path: str | None, task: str, stride: int, is_strict: bool, target: str | None, **options: Any) -> None:
    """Score the texts in FILE, or run TASKS of lm-eval, with the model in SRC.

    SRC is a run, a folder of checkpoints, a checkpoint of any layout, Megatron's
    files, or a Hugging Face folder.
    """
    degrees = degrees_of(options)
    if bool(path) == bool(options["tasks"]):
        raise ConfigError("pass --data FILE with a text, or --tasks NAME,NAME to run tasks of lm-eval")
    if target and not absolute(target).parent.is_dir():
        raise ConfigError(f"--json {target}: its folder does not exist; create it, or pass another file")
    if degrees["tensor"] * degrees["pipeline"] > 1 and not is_rank():
        sys.exit(start_ranks(degrees["tensor"] * degrees["pipeline"]))
    if options["tasks"]:
        evaluate_tasks(options, degrees, target)
        return
    assert path is not None
    from megads.evaluate.score import progress_of, score
    from megads.evaluate.tasks import Options, make_task
    from megads.inference.generate import leave
    from megads.inference.session import open_session

    session = open_session(session_request(options, degrees, num_slots=1), os.environ)
    if session.speaks:
        for line in (*session.notes, session.summary):
            click.echo(f"megads: {line}", err=True)
    runner = session.runner
    made = make_task(task, absolute(path), session.tokenizer, Options(runner.context, stride, is_strict))
    with bar("evaluating", "windows") as show:
        scores = score(runner, made.windows, options["batch"], progress_of(show, session.groups.data_size))
    result = made.result(scores)
    if session.speaks:
        click.echo(f"{task.lower()} {path}: {made.line.format(**result)}")
        if target:
            write_result(target, json.dumps({"task": task.lower(), "data": path, **result}) + "\n")
    leave()
