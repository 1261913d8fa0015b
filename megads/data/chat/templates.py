"""From the messages of a chat to its text, and which parts of it are answers: named templates.

Each is written twice: as a function, which needs no library, and in jinja2 as transformers and servers read it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from megads.data.chat.conversations import ASSISTANT, SYSTEM, USER, Message
from megads.errors import DataError


@dataclass(frozen=True)
class Piece:
    """A part of a chat's text."""

    text: str
    counts: bool = False  # whether it is an answer, with what ends it


class Template(Protocol):
    """What gives a chat its form."""

    @property
    def jinja(self) -> str:
        """The template in jinja2."""

    def pieces(self, messages: Sequence[Message]) -> list[Piece]:
        """Return the text of a chat, in pieces.

        Raises:
            DataError: it has no place for the messages; without the name of the file.
        """


@dataclass(frozen=True)
class Ends:
    """Names of the tokens around texts; empty: there is none."""

    bos: str = ""
    eos: str = ""


@dataclass(frozen=True)
class Form:
    """A template with a name.

    Attributes:
        needs: names of tokens that the vocabulary must have, so that each is one.
        end: of an answer; empty: the token that ends a text.
    """

    write: Callable[[Sequence[Message], Ends], list[Piece]]
    jinja: str
    needs: tuple[str, ...] = ()
    end: str = ""
    needs_bos: bool = False


@dataclass(frozen=True)
class NamedTemplate:
    """A template with a name, and the tokens of a vocabulary that it uses."""

    name: str
    ends: Ends

    @property
    def form(self) -> Form:
        """Its row."""
        return FORMS[self.name]

    @property
    def jinja(self) -> str:
        """The template in jinja2."""
        return self.form.jinja

    def pieces(self, messages: Sequence[Message]) -> list[Piece]:
        """Return the text of a chat; see :class:`Template`."""
        return self.form.write(messages, self.ends)


def _chatml(messages: Sequence[Message], ends: Ends) -> list[Piece]:
    found: list[Piece] = []
    for each in messages:
        said = Piece(f"{each.content}<|im_end|>", each.counts)
        found += [Piece(f"<|im_start|>{each.role}\n"), said, Piece("\n")]
    return found


def _llama_3(messages: Sequence[Message], ends: Ends) -> list[Piece]:
    found = [Piece("<|begin_of_text|>")]
    for each in messages:
        head = Piece(f"<|start_header_id|>{each.role}<|end_header_id|>\n\n")
        found += [head, Piece(f"{each.content.strip()}<|eot_id|>", each.counts)]
    return found


def _llama_2(messages: Sequence[Message], ends: Ends) -> list[Piece]:
    system = ""
    if messages and messages[0].role == SYSTEM:
        system, messages = f"<<SYS>>\n{messages[0].content}\n<</SYS>>\n\n", messages[1:]
    found: list[Piece] = []
    for number, each in enumerate(messages):
        if each.role != (USER, ASSISTANT)[number % 2]:
            raise DataError(f"message {number} is of {each.role}; llama-2 has users and assistants in turn, user first")
        if each.role == USER:
            said = f"{system if number == 0 else ''}{each.content}".strip()
            found.append(Piece(f"{ends.bos}[INST] {said} [/INST]"))
        else:
            found.append(Piece(f" {each.content.strip()} {ends.eos}", each.counts))
    return found


def _instruct_retro(messages: Sequence[Message], ends: Ends) -> list[Piece]:
    _only("instruct-retro", messages)
    found: list[Piece] = []
    for each in messages:
        text = each.content.strip()
        if each.role == ASSISTANT:
            found += [Piece("Assistant:"), Piece(f" {text}{ends.eos}", each.counts), Piece("\n\n")]
        else:
            found.append(Piece(f"{'System' if each.role == SYSTEM else 'User'}: {text}\n\n"))
    return found


def _plain(messages: Sequence[Message], ends: Ends) -> list[Piece]:
    _only("plain", messages)
    return [Piece(f"{each.content}{ends.eos if each.role == ASSISTANT else chr(10)}", each.counts) for each in messages]


def _only(name: str, messages: Sequence[Message]) -> None:
    for number, each in enumerate(messages):
        if each.role not in (SYSTEM, USER, ASSISTANT):
            raise DataError(f"message {number} is of {each.role}; {name} has system, user and assistant only")


_PLAIN = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% else %}{{ '\\n' }}{% endif %}{% endfor %}"
)
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_LLAMA_3 = (
    "{{ '<|begin_of_text|>' }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
_LLAMA_2 = (
    "{% if messages and messages[0]['role'] == 'system' %}"
    "{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}{% set said = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set said = messages %}{% endif %}"
    "{% for message in said %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) or message['role'] not in "
    "['user', 'assistant'] %}{{ raise_exception('users and assistants speak in turn, user first') }}{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + ((system if loop.first else '') + message['content']) | trim + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
_INSTRUCT_RETRO = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ 'Assistant: ' + message['content'] | trim + eos_token + '\\n\\n' }}"
    "{% else %}{{ ('System' if message['role'] == 'system' else 'User') + ': ' }}"
    "{{ message['content'] | trim + '\\n\\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)

_OF_LLAMA_3 = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
FORMS = {
    "plain": Form(_plain, _PLAIN),
    "instruct-retro": Form(_instruct_retro, _INSTRUCT_RETRO),
    "chatml": Form(_chatml, _CHATML, ("<|im_start|>", "<|im_end|>"), "<|im_end|>"),
    "llama-2": Form(_llama_2, _LLAMA_2, needs_bos=True),
    "llama-3": Form(_llama_3, _LLAMA_3, _OF_LLAMA_3, "<|eot_id|>"),
}
"""Templates by name."""

NAMES = shlex.join(FORMS).replace(" ", ", ")
