"""``megads evaluate --tasks``: lm-eval on a model in any layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from megads.cli.generate import session_request
from megads.cli.options.request import absolute
from megads.cli.watched import watched
from megads.errors import ConfigError
from megads.storage.open_file import write_cure

OFFLINE = ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE")
"""Set to 1 unless the user has set them: nothing is downloaded that was not asked for."""

_OPTIONS = (
    click.option("--tasks", metavar="NAMES", help="Tasks of lm-eval, with commas between them, or their YAML files."),
    click.option("--include-path", "--include_path", metavar="DIR", help="--tasks: a folder with tasks of your own."),
    click.option("--num-fewshot", "--num_fewshot", type=click.IntRange(min=0), help="--tasks: examples before each."),
    click.option("--limit", type=click.FloatRange(min=0, min_open=True), help="--tasks: documents of each; 0.1: 10 %."),
    click.option("--gen-kwargs", "--gen_kwargs", metavar="K=V,K=V", help="--tasks: settings of generation."),
    click.option("--apply-chat-template", "--apply_chat_template", "chat", is_flag=True, help="--tasks: as chats."),
    click.option("--log-samples", "--log_samples", is_flag=True, help="--tasks: documents and answers in --output."),
)


def harness_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of tasks of lm-eval."""
    for each in reversed(_OPTIONS):
        command = each(command)
    return command


def evaluate_tasks(options: Mapping[str, Any], degrees: Mapping[str, int], target: str | None) -> None:
    """Run tasks on this rank, print their table and write ``target``.

    Raises:
        MegadsError: a task or the model cannot be used.
    """
    for name in OFFLINE:
        os.environ.setdefault(name, "1")
    from megads.evaluate.lm_eval.run import HarnessOptions, as_json, check_package, evaluate, table
    from megads.inference.session import open_session

    check_package()
    names = tuple(each.strip() for each in options["tasks"].split(",") if each.strip())
    wanted = HarnessOptions(
        names,
        absolute(options["include_path"]) if options["include_path"] else None,
        options["num_fewshot"],
        options["limit"],
        options["gen_kwargs"] or "",
        options["chat"],
        options["log_samples"],
        options["batch"],
    )
    session = open_session(session_request(options, degrees, options["batch"]), os.environ)
    with watched(session):
        if session.speaks:
            click.echo(f"megads: {session.summary}", err=True)
        results = evaluate(session, wanted)
        if results is not None:
            click.echo(table(results))
            if target:
                write_result(target, as_json(results) + "\n")


def write_result(target: str, text: str, option: str = "--output") -> None:
    """Write numbers to a file of the user's; ConfigError where that is impossible."""
    try:
        absolute(target).write_text(text, encoding="utf8")
    except OSError as error:
        cure = write_cure(error, "pass another file")
        raise ConfigError(f"{option} {target}: {error.strerror}; {cure}") from None
