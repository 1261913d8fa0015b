"""Chat templates of Hugging Face tokenizers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from megads.errors import ConfigError
from megads.storage.reading import Bounds, parse_json

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"


class ChatTemplate:
    """The template next to a tokenizer, and the special tokens that it may use.

    Args:
        folder: of the tokenizer; None: it has none.
    """

    def __init__(self, folder: Path | None):
        self.text, self.tokens = "", dict[str, str]()
        if folder is None:
            return
        config = _config(folder / CONFIG)
        self.text = str(config.get("chat_template") or "")
        if (folder / TEMPLATE).is_file():
            self.text = (folder / TEMPLATE).read_text(encoding="utf8")
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
        if not self.text:
            raise ConfigError(
                "the model's tokenizer has no chat template; use /v1/completions, or put chat_template.jinja next to it"
            )
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        environment.filters["tojson"] = lambda value, **more: json.dumps(value, ensure_ascii=False, **more)
        try:
            template = environment.from_string(self.text)
            return template.render(messages=messages, add_generation_prompt=add_generation_prompt, **self.tokens)
        except Exception as error:  # a template is code, and fails as its author did not expect
            raise ConfigError(f"the chat template refuses the messages: {error}") from None


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _config(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_bytes())
    except (OSError, Bounds):
        return {}
    return found if isinstance(found, dict) else {}
