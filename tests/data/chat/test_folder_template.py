"""Chat templates equal transformers'."""

from __future__ import annotations

import json

import pytest

from megads.data.chat.conversations import Message
from megads.data.chat.folder_template import ChatTemplate, FolderTemplate
from megads.errors import ConfigError, DataError

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


CHAT = [
    Message("user", "q"),
    Message("assistant", "a", counts=True),
    Message("user", "r"),
    Message("assistant", "b", counts=False),
    Message("assistant", "c", counts=True),
]


def pieces(template, messages=CHAT, names=("</s>",)):
    made = ChatTemplate(None, template)
    made.tokens = {"eos_token": "</s>"}
    return [(each.text, each.counts) for each in FolderTemplate(made, names).pieces(messages)]


LOOP = "{% for m in messages %}{{ m.role + ':' + m.content + END }}{% endfor %}" + (
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("end", "counted"),
    [
        ("eos_token + '\\n'", ["a</s>", "c</s>"]),  # blanks behind the token that ends an answer do not count
        ("eos_token", ["a</s>", "c</s>"]),
        ("'\\n'", ["a\n", "c\n"]),  # here they are all that ends it
    ],
)
def test_answers_are_found_by_what_a_template_writes_for_the_beginnings_of_a_chat(end, counted):
    found = pieces(LOOP.replace("END", end))
    assert [text for text, counts in found if counts] == counted
    whole = ChatTemplate(None, LOOP.replace("END", end))
    whole.tokens = {"eos_token": "</s>"}
    given = [{"role": each.role, "content": each.content} for each in CHAT]
    assert "".join(text for text, _ in found) == whole.render(given, add_generation_prompt=False)


MARKED = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}|"
MARKED += "{% else %}{{ m.content }}|{% endif %}{% endfor %}"


def test_a_template_that_marks_answers_says_itself_what_counts():
    counted = [("q|", False), ("a", True), ("|r|", False), ("b", False), ("|", False), ("c", True), ("|", False)]
    assert pieces(MARKED) == counted
    served = ChatTemplate(None, MARKED).render([{"role": "assistant", "content": "a"}], add_generation_prompt=True)
    assert served == "a|"


LAST = "{% for m in messages %}{{ '<' + m.content + ('!' if loop.last else '') + '>' }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (LAST, CHAT, r"message 1: the chat template writes a chat in another way once it is longer"),
        (LOOP.replace("END", "''").replace("'assistant:'", "'bot:'"), CHAT, r"message 1: .*; put {% generation %}"),
        ("{{ raise_exception('no') }}", CHAT, "the chat template refuses the messages: no"),
        ("{% for x", CHAT, "the chat template refuses the messages"),
        (MARKED.replace("{% if m.role == 'assistant' %}", "{% if true %}"), CHAT, "marks other parts than the answers"),
        (LOOP, [Message("user", "\0megads answer\0")], "has the characters with which answers are marked"),
    ],
)
def test_templates_whose_answers_are_not_known_are_rejected_in_one_line(template, messages, words):
    with pytest.raises(DataError, match=words) as caught:
        pieces(template, messages)
    assert "\n" not in str(caught.value)


def test_of_several_templates_the_default_is_taken(tmp_path):
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate(tmp_path).text == "D"
