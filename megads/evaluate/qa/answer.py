"""A model's answers to questions, with contexts in the prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from megads.data.chat.encoding import ChatEncoder
from megads.data.chat.examples import find_template
from megads.data.qa.chats import chat_tokens
from megads.data.qa.prompts import STYLES, Asking, prompt_tokens
from megads.data.qa.questions import Question
from megads.inference.generate import Prompt, generate
from megads.inference.retro.neighbors import NeighborSource
from megads.inference.retro.runner import RetroRunner
from megads.inference.sampling import Sampling
from megads.inference.session import Session


def prompts_of(session: Session, questions: Sequence[Question], asking: Asking, max_tokens: int) -> list[Prompt]:
    """Return the prompts, of which each leaves room for ``max_tokens``.

    Raises:
        ConfigError: a question does not fit the context of the model.
    """
    tokenizer, room, contexts = session.tokenizer, session.runner.context - max_tokens, asking.contexts
    template = find_template(asking.template, tokenizer) if asking.template else None
    encoder = ChatEncoder(tokenizer) if template else None
    made = []
    for number, question in enumerate(questions):
        if template and encoder:
            tokens = chat_tokens(question, template, encoder, room, contexts)
        else:
            style = STYLES[asking.style]
            tokens = prompt_tokens(question, style, tokenizer.encode, room, contexts, asking.system)
        neighbors = _neighbors(session, question, contexts)
        made.append(Prompt(tokenizer.decode(tokens), number, tokens=tuple(tokens), neighbors=neighbors))
    return made


def _neighbors(session: Session, question: Question, contexts: int) -> tuple[tuple[str, ...], ...]:
    """Return the neighbours of a prompt: contexts that are not in it, if there are any, else all of them."""
    if not isinstance(session.runner, RetroRunner) or not question.contexts:
        return ()
    return (question.contexts[contexts:] or question.contexts,)


def answer(
    session: Session,
    questions: Sequence[Question],
    asking: Asking,
    sampling: Sampling,
    progress: Callable[[int, int], None] = lambda done, total: None,
    retrieve: NeighborSource | None = None,
) -> list[dict[str, Any]]:
    """Return a record for every question, in order, on rank 0; elsewhere nothing. All ranks call it.

    With ``retrieve`` neighbours are looked up, also of questions that have contexts. A record has ``id``, the number
    of the question from 0, ``question``, ``text`` (the answer) and ``finish_reason``.

    Raises:
        ConfigError: a question does not fit the context of the model; nothing is generated then.
    """
    prompts = prompts_of(session, questions, asking, sampling.max_tokens)
    if retrieve is not None:
        prompts = [replace(prompt, neighbors=()) for prompt in prompts]
    records = generate(session, prompts, sampling, progress, retrieve)
    return [
        {
            "id": record["id"],
            "question": questions[record["id"]].text,
            "text": record["text"].strip(),
            "finish_reason": record["finish_reason"],
        }
        for record in records
    ]
