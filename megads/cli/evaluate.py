"""``megads evaluate``: a trained model's perplexity and accuracy on texts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.generate import degree_of, degrees_of, is_rank, model_options, session_request, start_ranks
from megads.cli.harness import evaluate_tasks, harness_options, write_result
from megads.cli.options.request import FlagCommand, absolute, show_notes
from megads.cli.options.retro import retro_options
from megads.cli.progress_bar import bar
from megads.cli.questions import check_question_options, evaluate_questions, question_options
from megads.cli.watched import watched
from megads.config.settings.tasks import TaskFile, parse_tasks
from megads.errors import ConfigError

if TYPE_CHECKING:
    from megads.cli.options.model_flags import ModelFlags

PARTS = ("train", "valid", "test")


class TaskCommand(FlagCommand):
    """A command whose ``--valid-data`` takes several files in a command line of Megatron-LM, which has ``--load``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args``; see :class:`click.Command`."""
        several = "--load" in {word.partition("=")[0] for word in args}
        words, is_file = [], False
        for place, word in enumerate(args):
            if several and is_file and not word.startswith("-") and args[place - 1] != "--valid-data":
                words.append("--valid-data")
            is_file = word == "--valid-data" or (is_file and not word.startswith("-"))
            words.append(word)
        return super().parse_args(ctx, words)


@click.command(cls=TaskCommand)
@model_options
@click.option("--dp", "data", type=click.IntRange(min=1), help="Replicas that share out the texts (DP).")
@click.option("--sp", "sequence", type=click.IntRange(min=1), help="Ranks that share every text (SP, Ulysses).")
@click.option("--task", default="loss", show_default=True, help="wikitext103, lambada, loss, or TASK:FILE,...")
@click.option(
    "--data", "--valid-data", "paths", metavar="FILE", multiple=True, help="Texts; several times for several."
)
@click.option("--part", type=click.Choice(PARTS), help="Token files: this part of the documents; needs --split.")
@click.option("--overlapping-eval", "stride", type=int, default=32, show_default=True, help="wikitext103: stride.")
@click.option("--strict-lambada", "is_strict", is_flag=True, help="lambada: the whole last word, not its last token.")
@click.option("--json", "--output", "--output_path", "target", metavar="PATH", help="Write the numbers there, too.")
@question_options
@retro_options
@harness_options
def evaluate(flags: Sequence[tuple[str, str]], **options: Any) -> None:
    """Score the texts in FILE, or run TASKS of lm-eval, or answer questions, with the model in SRC.

    SRC is a run, a folder of checkpoints, a checkpoint of any layout, Megatron's
    files, or a Hugging Face folder. Options of Megatron-LM's tasks/main.py are
    accepted. See docs/evaluation.md.
    """
    from megads.cli.options.model_flags import read_model_flags

    check_question_options(options)
    if options["qa"] and not (options["source"] or options["load"]):
        evaluate_questions(options, None)
        return
    named = bool(options["paths"]) or ":" in options["task"]
    degrees = {
        **degrees_of(options),
        # Tasks of lm-eval also generate.
        "sequence": options["sequence"] or (1 if options["tasks"] else degree_of("parallel.sequence")),
        "replicas": options["data"] or degree_of("parallel.data", 0),
    }
    if options["qa"]:
        evaluate_questions(options, degrees)
        return
    if named == bool(options["tasks"]):
        raise ConfigError("pass --data FILE with a text, or --tasks NAME,NAME to run tasks of lm-eval")
    if options["tasks"] and degrees["sequence"] > 1:
        raise ConfigError(f"--sp {degrees['sequence']}: tasks of lm-eval run with --tp, --pp and --dp")
    files = [] if options["tasks"] else _files(options)
    given = read_model_flags(flags)
    documents = _documents(options["part"], given.split, files)
    _check_files(files)
    _check_target(options["target"], files)
    ranks = degrees["tensor"] * degrees["pipeline"] * degrees["sequence"] * max(1, degrees["replicas"])
    if ranks > 1 and not is_rank():
        sys.exit(start_ranks(ranks))
    options["dtype"] = options["dtype"] or given.dtype
    options["tokenizer"] = options["tokenizer"] or given.tokenizer
    if options["tasks"]:
        evaluate_tasks(options, degrees, options["target"])
    else:
        _evaluate(files, given, documents, degrees, options)


def _files(options: dict[str, Any]) -> list[TaskFile]:
    """Return the tasks that are asked for."""
    if ":" in options["task"]:
        if options["paths"]:
            raise ConfigError(f"--task {options['task']} and --data: pass the files with one of them")
        return [replace(each, path=each.path.expanduser()) for each in parse_tasks(options["task"], "--task ")]
    task = options["task"].lower()
    return [TaskFile(task, Path(path).expanduser(), f"{task}.{Path(path).stem}") for path in options["paths"]]


def _check_files(files: list[TaskFile]) -> None:
    """Find what is wrong with the files before the model is loaded, as far as that shows without its tokenizer."""
    from megads.evaluate.tasks import check_file

    for file in files:
        check_file(file.task, file.path)


def _documents(part: str | None, split: str, files: list[TaskFile]) -> Callable[[int], range] | None:
    """Return which documents of token files are asked for; None: all."""
    if not part:
        return None
    if not split:
        raise ConfigError(f"--part {part} needs the shares of train, valid and test, e.g. --split 969,30,1")
    from megads.evaluate.tasks import is_token_file

    if other := next((file for file in files if file.task != "loss" or not is_token_file(file.path)), None):
        raise ConfigError(f"--part {part}: {other.path} is not a token file of the task loss, and has no documents")
    from megads.config.settings.data import parse_split
    from megads.data.samples.split import split_documents

    shares = parse_split(split)
    return lambda documents: split_documents(shares, documents)[PARTS.index(part)]


def _evaluate(
    files: list[TaskFile],
    given: ModelFlags,
    documents: Callable[[int], range] | None,
    degrees: dict[str, int],
    options: dict[str, Any],
) -> None:
    from megads.evaluate.score import progress_of, score
    from megads.evaluate.tasks import Options, make_task
    from megads.inference.session import open_session

    session = open_session(session_request(options, degrees, num_slots=1), os.environ)
    given.check(session.runner.module.config)
    with watched(session):
        if session.speaks:
            show_notes((*session.notes, given.note(), session.summary))
        runner = session.runner
        wanted = Options(runner.context, options["stride"], options["is_strict"], runner.vocab_size, documents)
        tasks = [make_task(file.task, file.path, session.tokenizer, wanted) for file in files]
        written: list[str] = []
        for file, task in zip(files, tasks, strict=True):
            with bar(f"evaluating {file.label}", "windows", lines=session.speaks) as show:
                scores = score(runner, task.windows, options["batch"], progress_of(show, session.groups.data_size))
            result = task.result(scores)
            if session.speaks:
                click.echo(f"{file.task} {file.path}: {task.line.format(**result)}")
                written.append(json.dumps({"task": file.task, "data": str(file.path), **result}) + "\n")
                _write(options["target"], file, written)


def _check_target(target: str | None, files: list[TaskFile]) -> None:
    """Refuse an output that cannot be written, before the model is loaded."""
    if not target:
        return
    if not absolute(target).is_dir():
        if target.endswith("/") or not absolute(target).parent.is_dir():
            raise ConfigError(f"--json {target}: its folder does not exist; create it, or pass another file")
        return
    labels = [file.label for file in files]
    if same := next((label for label in labels if labels.count(label) > 1), ""):
        raise ConfigError(f"--json {target}: two files would be written as {same}.json; pass a file for both")


def _write(target: str | None, file: TaskFile, written: list[str]) -> None:
    """Write the numbers of ``file``, the last line, to a file of its own; or all lines so far where there is one."""
    if target and absolute(target).is_dir():
        write_result(str(absolute(target) / f"{file.label}.json"), written[-1])
    elif target:
        write_result(target, "".join(written))
