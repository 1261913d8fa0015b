"""The chat template in a tokenizer's folder, in jinja2 as transformers reads it, run in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from megads.data.chat.conversations import Message
from megads.data.chat.templates import Piece
from megads.errors import ConfigError, DataError, DependencyError
from megads.storage.reading import Bounds, parse_json

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
MOST_TEXT = 1 << 20
"""Characters of a template."""

_BEGIN, _END = "\0megads answer\0", "\0megads answer ends\0"
"""Around what a template calls generation, while it is rendered; no text has them."""


class ChatTemplate:
    """The template next to a tokenizer, and the special tokens that it may use.

    Args:
        folder: of the tokenizer; None: it has none.
        text: of the template; empty: the one in the folder.
    """

    def __init__(self, folder: Path | None, text: str = ""):
        self.text, self.tokens = text, dict[str, str]()
        if folder is None:
            return
        config = _config(folder / CONFIG)
        self.text = text or _text_in(folder, config)
        for name in ("bos_token", "eos_token", "pad_token"):
            value = config.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if value:
                self.tokens[name] = str(value)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """Return the text of a chat.

        Raises:
            ConfigError: there is no template, or it refuses the messages.
        """
        text = self._render(messages, add_generation_prompt=add_generation_prompt)
        return text.replace(_BEGIN, "").replace(_END, "")

    def _render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        if not self.text:
            raise ConfigError(
                "the model's tokenizer has no chat template; use /v1/completions, or put chat_template.jinja next to it"
            )
        try:
            return str(
                self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **self.tokens)
            )
        except DependencyError:
            raise
        except Exception as error:  # a template is code, and fails as its author did not expect
            raise ConfigError(f"the chat template refuses the messages: {error}") from None

    @cached_property
    def _template(self) -> Any:
        try:
            from jinja2 import nodes
            from jinja2.ext import Extension
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise DependencyError("a chat template needs jinja2; pip install -e '.[serve]' in the checkout") from None

        class Generation(Extension):
            """Marks what stands between ``{% generation %}`` and ``{% endgeneration %}``."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

            def _marked(self, caller: Any) -> str:
                return f"{_BEGIN}{caller()}{_END}"

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation])
        environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        environment.filters["tojson"] = lambda value, **more: json.dumps(value, ensure_ascii=False, **more)
        return environment.from_string(self.text)


class FolderTemplate:
    """A :class:`ChatTemplate` that also finds the answers in the text; see :class:`~templates.Template`.

    Args:
        names: of special tokens: blanks behind one that ends an answer do not count.
    """

    def __init__(self, template: ChatTemplate, names: Sequence[str]):
        self.template, self.names = template, tuple(name for name in names if name)

    @property
    def jinja(self) -> str:
        """The template."""
        return self.template.text

    def pieces(self, messages: Sequence[Message]) -> list[Piece]:
        """Return the text of a chat; see :class:`~templates.Template`."""
        given = [{"role": each.role, "content": each.content} for each in messages]
        if any("\0megads" in each.content for each in messages):
            raise DataError("a message has the characters with which answers are marked")
        try:
            text = self.template._render(given, add_generation_prompt=False)
            if _BEGIN in text:
                return _marked_pieces(text, messages)
            spans = list(self._spans(text, given, messages))
        except ConfigError as error:
            raise DataError(str(error)) from None
        found, at = [], 0
        for begin, end in spans:
            found += [Piece(text[at:begin]), Piece(text[begin:end], counts=True)]
            at = end
        return [each for each in (*found, Piece(text[at:])) if each.text]

    def _spans(
        self, text: str, given: Sequence[Mapping[str, Any]], messages: Sequence[Message]
    ) -> Iterator[tuple[int, int]]:
        """Yield where each answer that counts begins and ends: behind what a chat up to it gives, with the prompt."""
        for number, message in enumerate(messages):
            if not message.counts:
                continue
            before = self.template.render(given[:number], add_generation_prompt=True)
            behind = self.template.render(given[: number + 1], add_generation_prompt=False)
            if not (text.startswith(before) and text.startswith(behind) and len(before) <= len(behind)):
                raise DataError(
                    f"message {number}: the chat template writes a chat in another way once it is longer, so which "
                    "part is the answer is not known; put {% generation %} around answers in it, or pass "
                    "--chat-template NAME"
                )
            stripped = behind.rstrip()
            yield len(before), len(stripped) if stripped.endswith(self.names) else len(behind)


def _marked_pieces(text: str, messages: Sequence[Message]) -> list[Piece]:
    """Return the pieces of a text with marks; the n-th mark is that of the n-th answer."""
    counts = [each.counts for each in messages if each.role == "assistant"]
    first, *parts = text.split(_BEGIN)
    if len(parts) != len(counts) and not all(counts):
        raise DataError("the chat template marks other parts than the answers, and some answers have the weight 0")
    found = [Piece(first)]
    for number, part in enumerate(parts):
        answer, _, rest = part.partition(_END)
        found += [Piece(answer, all(counts) or counts[number]), Piece(rest)]
    return [each for each in found if each.text]


def _text_in(folder: Path, config: Mapping[str, Any]) -> str:
    if (folder / TEMPLATE).is_file():
        return (folder / TEMPLATE).read_text(encoding="utf8")
    given = config.get("chat_template")
    if isinstance(given, list):  # several, with names
        named = {each.get("name"): each.get("template") for each in given if isinstance(each, dict)}
        given = named.get("default")
    return str(given or "")


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _config(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_bytes())
    except (OSError, Bounds):
        return {}
    return found if isinstance(found, dict) else {}
