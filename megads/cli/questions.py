"""``megads evaluate --qa``: a model's answers to questions, scored by token F1 and exact match."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megads.cli.generate import is_rank, session_request, start_ranks
from megads.cli.harness import write_result
from megads.cli.options.request import absolute
from megads.cli.options.retro import model_changes, retrieval_of
from megads.cli.progress_bar import bar
from megads.cli.watched import watched
from megads.errors import ConfigError

if TYPE_CHECKING:
    from megads.data.qa.prompts import Asking
    from megads.data.qa.questions import Question

_COUNT, _FEW = click.IntRange(min=0), click.IntRange(min=1)
_OPTIONS = (
    click.option("--qa", metavar="FILE", help="Questions with answers: a JSON list, or one object per line."),
    click.option("--predictions", metavar="FILE", help="--qa: answers to write; without SRC those to score."),
    click.option("--contexts", type=_COUNT, help="--qa: contexts of each question in its prompt; default: 0."),
    click.option("--chat-template", "template", metavar="NAME", help="--qa: form of the chats it was finetuned on."),
    click.option("--style", metavar="NAME", help="--qa: short, yes-no, choice, long, dialogue; default: by the file."),
    click.option("--system", metavar="TEXT", help="--qa: the line that the model was trained with; '': none."),
    click.option("--max-tokens", "--out-seq-length", type=_FEW, help="--qa: of an answer; default: 64."),
    click.option("--stop", multiple=True, metavar="TEXT", help="--qa: a text that ends an answer."),
)
_NAMES = ("predictions", "contexts", "template", "style", "system", "max_tokens", "stop")


def question_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of questions."""
    for each in reversed(_OPTIONS):
        command = each(command)
    return command


def check_question_options(options: Mapping[str, Any]) -> None:
    """Refuse options of questions without questions, and questions next to other texts.

    Raises:
        ConfigError: as said.
    """
    names = (*_NAMES, "retro_num_neighbors", "retro_attention_gate", "retro_project_dir")
    if not options["qa"]:
        if given := next((name for name in names if options[name] not in (None, ())), ""):
            name = given.replace("_", "-").replace("template", "chat-template")
            raise ConfigError(f"--{name}: needs questions, --qa FILE")
        return
    if other := next((name for name in ("paths", "tasks", "part") if options[name]), ""):
        name = {"paths": "data"}.get(other, other)
        raise ConfigError(f"--qa {options['qa']} and --{name}: pass one of them")


def evaluate_questions(options: Mapping[str, Any], degrees: Mapping[str, int] | None) -> None:
    """Answer the questions and score the answers; ``degrees`` None: score those of a file, without a model.

    Raises:
        MegadsError: a file is wrong, or the model cannot be used.
    """
    from megads.data.qa.questions import read_questions
    from megads.evaluate.qa.predictions import read_predictions

    questions = read_questions(str(Path(options["qa"]).expanduser()))
    if degrees is None:
        if not options["predictions"]:
            raise ConfigError("--qa needs a model, SRC, or answers to score, --predictions FILE")
        path = str(Path(options["predictions"]).expanduser())
        _show(read_predictions(path), questions, path, options)
        return
    asking = _asking(options)
    if (target := options["predictions"]) and not absolute(target).parent.is_dir():
        raise ConfigError(f"--predictions {target}: its folder does not exist; create it, or pass another file")
    if degrees.get("sequence", 1) > 1:
        raise ConfigError(f"--sp {degrees['sequence']}: answers are generated with --tp, --pp and --dp")
    ranks = degrees["tensor"] * degrees["pipeline"] * max(1, degrees["replicas"])
    if ranks > 1 and not is_rank():
        sys.exit(start_ranks(ranks))
    _answer(questions, asking, degrees, options)


def _asking(options: Mapping[str, Any]) -> Asking:
    from megads.data.qa.prompts import SYSTEM, Asking, style_named, style_of

    if options["template"]:
        if given := next((name for name in ("style", "system") if options[name] is not None), ""):
            raise ConfigError(f"--chat-template {options['template']} and --{given}: pass one of them")
        return Asking(contexts=options["contexts"] or 0, template=options["template"])
    style = options["style"] or style_of(options["qa"])
    style_named(style, "--style ")
    return Asking(style, options["contexts"] or 0, SYSTEM if options["system"] is None else options["system"])


def _answer(questions: list[Question], asking: Asking, degrees: Mapping[str, int], options: Mapping[str, Any]) -> None:
    from megads.evaluate.qa.answer import answer
    from megads.inference.sampling import Sampling
    from megads.inference.session import open_session

    sampling = Sampling(temperature=0.0, max_tokens=options["max_tokens"] or 64, stop=options["stop"])
    slots, uses = min(options["batch"], len(questions)), ("causal", "retro")
    session = open_session(session_request(options, degrees, slots, uses, model_changes(options)), os.environ)
    retrieve = retrieval_of(session, options)
    with watched(session):
        if session.speaks:
            for line in (*session.notes, session.summary):
                click.echo(f"megads: {line}", err=True)
        with bar("answering", "questions") as progress:
            records = answer(session, questions, asking, sampling, progress, retrieve)
        if session.speaks:
            if options["predictions"]:
                lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
                write_result(options["predictions"], lines, "--predictions")
            _show([record["text"] for record in records], questions, options["predictions"] or "answers", options)


def _show(answers: list[str], questions: list[Question], where: str, options: Mapping[str, Any]) -> None:
    from megads.evaluate.qa.predictions import score

    found = score(answers, questions, where)
    if options["target"]:
        written = {"task": "qa", "data": options["qa"], **found}
        write_result(options["target"], json.dumps(written) + "\n")
    parts = "F1 {f1:.4f} (precision {precision:.4f}, recall {recall:.4f}), best of several answers {f1_best:.4f}"
    line = f"{parts}, exact match {{exact_match:.4f}}, {{scored}} of {{questions}} questions scored".format(**found)
    click.echo(f"qa {options['qa']}: {line}")
