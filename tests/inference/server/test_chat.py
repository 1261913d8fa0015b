"""Chat templates equal transformers'."""

from __future__ import annotations

import json

import pytest

from megads.errors import ConfigError
from megads.inference.server.chat import ChatTemplate

TEMPLATE = (
    "{{ bos_token }}{% for each in messages %}\n"
    "{% if each.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\n"
    "<{{ each['role'] }}>{{ each['content'] | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
MESSAGES = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "ho \N{SNOWMAN}"}]


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("prompt", [False, True])
def test_a_template_renders_as_in_transformers(tmp_path, in_file, prompt):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<s>": 0}, "<s>")), bos_token="<s>")
    theirs.eos_token = "</s>"
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    if in_file:
        (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    else:
        config["chat_template"] = TEMPLATE
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    made = ChatTemplate(tmp_path).render(MESSAGES, add_generation_prompt=prompt)
    wanted = theirs.apply_chat_template(MESSAGES, chat_template=TEMPLATE, tokenize=False, add_generation_prompt=prompt)
    assert made == wanted


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('only users') }}", "the chat template refuses the messages: only users"),
        ("{% for x", "the chat template refuses the messages"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "the chat template refuses"),
    ],
)
def test_templates_that_fail_are_one_line(template, words):
    made = ChatTemplate(None)
    made.text = template
    with pytest.raises(ConfigError, match=words):
        made.render(MESSAGES, add_generation_prompt=True)


def test_a_tokenizer_without_a_template(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{")
    for folder in (None, tmp_path):
        with pytest.raises(ConfigError, match="has no chat template; use /v1/completions"):
            ChatTemplate(folder).render(MESSAGES, add_generation_prompt=True)
