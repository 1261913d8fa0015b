"""A question in the form of the chats that a model was finetuned with: the text in front of the answer."""

from __future__ import annotations

from megads.data.chat.conversations import ASSISTANT, USER, Conversation, Message
from megads.data.chat.encoding import ChatEncoder
from megads.data.chat.templates import Template
from megads.data.qa.questions import Question
from megads.errors import ConfigError, DataError

_ANSWER = "x"


def chat_tokens(question: Question, template: Template, encode: ChatEncoder, room: int, contexts: int) -> list[int]:
    """Return the tokens of a prompt of at most ``room`` tokens; contexts lose words at their end, nothing else does.

    Raises:
        ConfigError: the question alone has more, or the template has no place for it.
    """
    words = [each.split(" ") for each in question.contexts[:contexts]]
    least, most = 0, sum(map(len, words))
    found = _tokens(question, template, encode, _first_words(words, most))
    if len(found) <= room:
        return found
    found = _tokens(question, template, encode, ())
    if len(found) > room:
        raise ConfigError(
            f"{question.where}: the question has {len(found)} tokens in its chat, and {room} fit; use a longer "
            "--context or fewer --max-tokens"
        )
    while most - least > 1:
        middle = (least + most) // 2
        longer = _tokens(question, template, encode, _first_words(words, middle))
        if len(longer) <= room:
            least, found = middle, longer
        else:
            most = middle
    return found


def _tokens(question: Question, template: Template, encode: ChatEncoder, contexts: tuple[str, ...]) -> list[int]:
    messages = (Message(USER, question.text), Message(ASSISTANT, _ANSWER, counts=True))
    chat = Conversation(messages, contexts, question.where)
    try:
        pieces = template.pieces(chat.with_contexts())
    except DataError as error:
        raise ConfigError(f"{question.where}: {error}") from None
    answer = next(number for number, each in enumerate(pieces) if each.counts)
    ids: list[int] = encode(pieces[:answer])[0].tolist()
    return ids


def _first_words(texts: list[list[str]], count: int) -> tuple[str, ...]:
    """Return the texts that hold the first ``count`` words of all."""
    found = []
    for words in texts:
        if count > 0:
            found.append(" ".join(words[:count]))
        count -= len(words)
    return tuple(found)
