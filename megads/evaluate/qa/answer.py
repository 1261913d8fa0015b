"""A model's answers to questions, with contexts in the prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megads.data.qa.prompts import STYLES, Asking, prompt_tokens
from megads.data.qa.questions import Question
from megads.inference.generate import Prompt, generate
from megads.inference.sampling import Sampling
from megads.inference.session import Session


def prompts_of(session: Session, questions: Sequence[Question], asking: Asking, max_tokens: int) -> list[Prompt]:
    """Return the prompts, of which each leaves room for ``max_tokens``.

    Raises:
        ConfigError: a question does not fit the context of the model.
    """
    room, style = session.runner.context - max_tokens, STYLES[asking.style]
    made = []
    for number, question in enumerate(questions):
        tokens = prompt_tokens(question, style, session.tokenizer.encode, room, asking.contexts, asking.system)
        made.append(Prompt(session.tokenizer.decode(tokens), number, tokens=tuple(tokens)))
    return made


def answer(
    session: Session,
    questions: Sequence[Question],
    asking: Asking,
    sampling: Sampling,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """Return a record for every question, in order, on rank 0; elsewhere nothing. All ranks call it.

    A record has ``id``, the number of the question from 0, ``question``, ``text`` (the answer) and ``finish_reason``.

    Raises:
        ConfigError: a question does not fit the context of the model; nothing is generated then.
    """
    prompts = prompts_of(session, questions, asking, sampling.max_tokens)
    records = generate(session, prompts, sampling, progress)
    return [
        {
            "id": record["id"],
            "question": questions[record["id"]].text,
            "text": record["text"].strip(),
            "finish_reason": record["finish_reason"],
        }
        for record in records
    ]
