"""The chats of a file: JSON lines, or one JSON array.

``{"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}, ...]}``
``{"prompt": ..., "response": ...}``                          or ``completion``
``{"instruction": ..., "input": ..., "output": ...}``         ``input`` may be absent
``{"question": ..., "answer": ...}``                          InstructRetro, see :mod:`megads.data.qa.questions`

The keys say which it is; every line of a file may be of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megads.data.qa.questions import question_of
from megads.data.tasks.examples import lines_of, object_of
from megads.errors import DataError
from megads.storage.reading import Bounds, parse_json

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
ROLES = (SYSTEM, USER, ASSISTANT, "tool")
KINDS = "messages; prompt and response; instruction and output; or question and answer"


@dataclass(frozen=True)
class Message:
    """What one side of a chat says."""

    role: str
    content: str
    counts: bool = False  # whether it is an answer to learn


@dataclass(frozen=True)
class Conversation:
    """A chat, and texts that its first question is about."""

    messages: tuple[Message, ...]
    contexts: tuple[str, ...] = ()
    where: str = ""  # file and line, for messages

    @property
    def has_answer(self) -> bool:
        """Whether there is something to learn."""
        return any(each.counts and each.content.strip() for each in self.messages)

    def with_contexts(self) -> tuple[Message, ...]:
        """Return the messages with the contexts in front of the first question, an empty line behind each."""
        if not self.contexts:
            return self.messages
        at = next(i for i, each in enumerate(self.messages) if each.role == USER)
        text = "".join(f"{each}\n\n" for each in self.contexts)
        first = Message(USER, text + self.messages[at].content)
        return (*self.messages[:at], first, *self.messages[at + 1 :])


def read_conversations(path: str) -> Iterator[Conversation]:
    """Yield the chats of a file, which may be compressed.

    Raises:
        DataError: it cannot be read, or a line is not one of the kinds.
    """
    lines = ((where, line) for where, line in lines_of(path) if line.strip())
    first = next(lines, None)
    if first is None:
        raise DataError(f"{path}: has no examples")
    if first[1].lstrip().startswith("["):
        yield from _of_array(path, "\n".join([first[1], *(line for _, line in lines)]))
        return
    yield _conversation(first[0], _object(*first))
    for where, line in lines:
        yield _conversation(where, _object(where, line))


def _object(where: str, line: str) -> dict[str, Any]:
    return object_of(where, line, 'an object such as {"prompt": ..., "response": ...}')


def _of_array(path: str, text: str) -> Iterator[Conversation]:
    try:
        rows = parse_json(text)
    except Bounds as error:
        raise DataError(f"{path}: {error}") from None
    if not rows:
        raise DataError(f"{path}: has no examples")
    for number, row in enumerate(rows):
        where = f"{path}, element {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: is not an object such as {{...}}; expected {KINDS}")
        yield _conversation(where, row)


def _conversation(where: str, row: Mapping[str, Any]) -> Conversation:
    for key, read in _READERS.items():
        if key in row:
            messages, contexts = read(where, row)
            return Conversation(tuple(messages), tuple(contexts), where)
    raise DataError(f"{where}: has {', '.join(map(str, row))[:80] or 'no keys'}; expected {KINDS}")


_Found = tuple[Sequence[Message], Sequence[str]]


def _messages(where: str, row: Mapping[str, Any]) -> _Found:
    given, found = row["messages"], []
    if not isinstance(given, list) or not given:
        raise DataError(f"{where}: messages is {given!r:.40}; expected a list of objects with role and content")
    for number, each in enumerate(given):
        what = f"{where}: message {number}"
        if not isinstance(each, dict):
            raise DataError(f"{what} is {each!r:.40}; expected an object with role and content")
        role = each.get("role")
        if role not in ROLES:
            raise DataError(f"{what} has the role {role!r:.40}; expected {', '.join(ROLES)}")
        weight = each.get("weight", 1)
        if weight not in (0, 1):
            raise DataError(f"{what} has the weight {weight!r:.40}; expected 0, which is not learnt, or 1")
        found.append(Message(role, _content(what, each.get("content")), role == ASSISTANT and weight == 1))
    return found, ()


def _content(what: str, content: Any) -> str:
    if isinstance(content, list) and all(isinstance(each, dict) and each.get("type") == "text" for each in content):
        content = "".join(str(each.get("text", "")) for each in content)
    if not isinstance(content, str):
        raise DataError(f"{what} has the content {content!r:.40}; expected a text")
    return content


def _prompt(where: str, row: Mapping[str, Any]) -> _Found:
    name = "response" if "response" in row else "completion"
    return _pair(_text(where, row, "prompt"), _text(where, row, name, may_be_empty=True)), ()


def _instruction(where: str, row: Mapping[str, Any]) -> _Found:
    text = _text(where, row, "instruction")
    if row.get("input") not in (None, ""):
        text = f"{text}\n\n{_text(where, row, 'input')}"
    return _pair(text, _text(where, row, "output", may_be_empty=True)), ()


def _question(where: str, row: Mapping[str, Any]) -> _Found:
    found = question_of(row, where)
    return _pair(found.text, found.answers[0] if found.answers else ""), found.contexts


def _pair(question: str, answer: str) -> tuple[Message, Message]:
    return Message(USER, question), Message(ASSISTANT, answer, counts=True)


def _text(where: str, row: Mapping[str, Any], name: str, *, may_be_empty: bool = False) -> str:
    text = row.get(name)
    if not isinstance(text, str) or not (may_be_empty or text.strip()):
        raise DataError(f"{where}: {name} is {text!r:.40}; expected a text")
    return text


_READERS: dict[str, Callable[[str, Mapping[str, Any]], _Found]] = {
    "messages": _messages,
    "prompt": _prompt,
    "instruction": _instruction,
    "question": _question,
}
"""The first of these keys that an object has says how it is read."""
