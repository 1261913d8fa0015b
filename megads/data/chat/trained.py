"""The chat template that a model was finetuned with: for servers and exports, and what ends an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megads.data.chat.conversations import ASSISTANT, USER, Message
from megads.data.chat.encoding import ChatEncoder
from megads.data.chat.examples import find_template
from megads.data.chat.folder_template import CONFIG, TEMPLATE, ChatTemplate
from megads.data.chat.templates import FORMS, Piece
from megads.data.tokenizers.base import Tokenizer, TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.errors import DataError
from megads.storage.reading import read_json


def form_of(settings: Mapping[str, Any]) -> str:
    """Return the chat template of a run by the settings in its checkpoints; empty where it has learnt no chats."""
    given = settings.get("finetune", {})
    return str(given.get("chat_template", "auto")) if given.get("task") == "chat" else ""


def folder_of(path: str) -> Path | None:
    """Return the folder of a tokenizer; None where it has no files."""
    place = Path(path)
    return None if not path else place if place.is_dir() else place.parent


def trained_template(form: str, tokenizer: Tokenizer, path: str) -> tuple[ChatTemplate, tuple[int, ...]]:
    """Return the template of a model that was trained with ``form``, and the tokens that end its answers.

    Args:
        form: name of the template; see :func:`megads.data.chat.examples.find_template`, whose errors this has.
        path: of the tokenizer.
    """
    found, encoder = find_template(form, tokenizer), ChatEncoder(tokenizer)
    made = ChatTemplate(folder_of(path), found.jinja)
    for name, token in (("bos_token", encoder.ends.bos), ("eos_token", encoder.ends.eos)):
        if token and form != "auto":
            made.tokens[name] = token
        elif token:
            made.tokens.setdefault(name, token)
    try:
        ids, counts = encoder(found.pieces([Message(USER, "a"), Message(ASSISTANT, "b", counts=True)]))
    except DataError:  # a template that wants other messages; the end of a text ends its answers
        return made, ()
    end = int(ids[counts][-1]) if counts.any() else -1
    return made, (end,) if end in _special(tokenizer, encoder) else ()


def _special(tokenizer: Tokenizer, encoder: ChatEncoder) -> set[int]:
    """Return the tokens that are no text."""
    inner = getattr(tokenizer, "inner", None)
    added = inner.get_added_tokens_decoder() if inner is not None else {}
    return {*encoder.names.values(), *(number for number, about in added.items() if about.special)}


def tokens_of_chat(tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the tokens that a model continues with its answer; ConfigError where the template refuses the messages."""
    text = template.render(messages, add_generation_prompt=True)
    return [int(each) for each in ChatEncoder(tokenizer)([Piece(text)])[0]]


def save_template(form: str, spec: TokenizerSpec, folder: Path) -> tuple[int, ...]:
    """Write the template of a model that was trained with ``form`` into a folder, and return what ends its answers.

    Errors as of :func:`trained_template`.
    """
    made, ends = trained_template(form, make_tokenizer(spec), spec.model)
    (folder / TEMPLATE).write_text(made.text, encoding="utf8")
    path = folder / CONFIG
    config = read_json(path) if path.is_file() else {}
    named = ("eos_token", "bos_token") if form in FORMS and FORMS[form].needs_bos else ("eos_token",)
    missing = {name: made.tokens[name] for name in named if name in made.tokens and name not in config}
    if missing:
        path.write_text(json.dumps({**config, **missing}, indent=2, ensure_ascii=False) + "\n", encoding="utf8")
    return ends
