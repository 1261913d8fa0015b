"""How a question is put to a model: a system line, contexts, the turn of the user, and the beginning of the answer.

A model is asked as it was trained, so training and generation both take their prompts from here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from megads.data.qa.questions import Question
from megads.errors import ConfigError

SYSTEM = (
    "System: An assistant answers the questions of a user. Its answers are correct, polite and detailed, and follow "
    "from the context if there is one; where the context lacks the answer, the assistant says so."
)
"""The default; pass the one that a model was trained with."""

_FILE_OF_SET = re.compile(r"(.+)_QA_(?:train|dev|test)$")


@dataclass(frozen=True)
class Style:
    """How a kind of questions is asked.

    Attributes:
        ask: what is put before or behind the question; ``{}`` is the question.
        begin: the beginning of the answer.
        is_turn: whether the question is a dialogue with its roles already; then it is taken as it is.
    """

    ask: str
    begin: str = "Assistant:"
    is_turn: bool = False


STYLES = {
    "short": Style("Reply with a few words. {}", "Assistant: The answer is"),
    "yes-no": Style("Reply with True or False. {}"),
    "choice": Style("Reply with one of the options. {}"),
    "long": Style("Reply in full. {}"),
    "dialogue": Style("{}", "", is_turn=True),
}
"""The kinds by name."""

_SETS = {
    "short": "drop narrativeqa qasc quoref ropes squad1.1 squad2.0 newsqa nq tqa bioasq duorc_paraphraserc textbookqa",
    "yes-no": "boolq multirc",
    "choice": "race",
    "dialogue": "convqa chatgptgen doc2dial quac qrecc sharc oasst quiet_cockatoo open_inst quiet-cockatoo_commercial",
}
"""The sets of InstructRetro that are not asked for long answers, in lower case."""
_STYLE_OF_SET = {name: style for style, names in _SETS.items() for name in names.split()}


@dataclass(frozen=True)
class Asking:
    """How questions are asked.

    Attributes:
        style: one of :data:`STYLES`.
        contexts: of each question, in its prompt.
        system: the line before all; empty: none.
        template: of chats, that a model was finetuned with; its form is taken, not that of a style. Empty: none.
    """

    style: str = "long"
    contexts: int = 0
    system: str = SYSTEM
    template: str = ""


def style_of(path: str | Path, default: str = "long") -> str:
    """Return the name of the style of the set that a file such as ``nq/nq_QA_dev.json`` is of.

    A file of another name has the style ``default``.
    """
    stem = Path(path).name.removesuffix(".gz").rsplit(".json", 1)[0]
    found = _FILE_OF_SET.match(stem)
    return _STYLE_OF_SET.get((found[1] if found else stem).lower(), default)


def style_named(name: str, where: str) -> Style:
    """Return a style by its name.

    Raises:
        ConfigError: there is none of that name; ``where`` is what the user wrote in front of it.
    """
    if name not in STYLES:
        raise ConfigError(f"{where}{name}: expected one of {', '.join(STYLES)}")
    return STYLES[name]


def turn_of(question: str, style: Style) -> str:
    """Return the question and the beginning of the answer."""
    return question if style.is_turn else f"User: {style.ask.format(question)}\n\n{style.begin}"


def prompt_of(question: Question, style: Style, contexts: int = 0, system: str = SYSTEM) -> str:
    """Return a prompt with the first ``contexts`` of the question's contexts, all of each."""
    shown = "".join(f"{each}\n\n" for each in question.contexts[:contexts])
    return f"{_head(system)}{shown}{turn_of(question.text, style)}"


def prompt_tokens(
    question: Question,
    style: Style,
    encode: Callable[[str], Sequence[int]],
    room: int,
    contexts: int = 0,
    system: str = SYSTEM,
) -> list[int]:
    """Return the tokens of a prompt of at most ``room`` tokens: contexts are cut at their end, nothing else is.

    Raises:
        ConfigError: the question alone has more.
    """
    turn = turn_of(question.text, style)
    tokens = list(encode(prompt_of(question, style, contexts, system)))
    if len(tokens) <= room:
        return tokens
    first, last = list(encode(_head(system))), list(encode(turn))
    left = room - len(first) - len(last)
    if left < 0:
        raise ConfigError(
            f"{question.where}: the question has {len(first) + len(last)} tokens with its system line, and {room} fit; "
            "use a longer --context or fewer --max-tokens"
        )
    shown = list(encode("".join(f"{each}\n\n" for each in question.contexts[:contexts])))
    return [*first, *shown[:left], *last]


def _head(system: str) -> str:
    return f"{system}\n\n" if system else ""
