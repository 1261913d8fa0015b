"""Prompts that are questions of a chat."""

from __future__ import annotations

from dataclasses import replace

from megads.data.chat.trained import tokens_of_chat
from megads.errors import ConfigError
from megads.inference.generate import Prompt
from megads.inference.session import Session


def as_chat(session: Session, prompt: Prompt) -> Prompt:
    """Return a prompt whose tokens are those of a question, in the chat template of the model or of its tokenizer.

    Raises:
        ConfigError: there is no template, or the model continues no texts.
    """
    if not session.continues:
        raise ConfigError("--chat is for models that continue a text, such as gpt and llama; drop it")
    if not session.template.text:
        raise ConfigError(
            "--chat: the model has learnt no chats and its tokenizer has no chat template; drop it, or put "
            "chat_template.jinja next to the tokenizer"
        )
    question = [{"role": "user", "content": prompt.text}]
    return replace(prompt, tokens=tuple(tokens_of_chat(session.tokenizer, session.template, question)))
