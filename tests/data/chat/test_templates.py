"""Named templates: by hand, and as transformers writes their jinja."""

import pytest

from megads.data.chat.conversations import Message
from megads.data.chat.templates import FORMS, Ends, NamedTemplate
from megads.errors import DataError

ENDS = Ends("<s>", "</s>")
CHAT = [
    Message("system", "be kind"),
    Message("user", " q "),
    Message("assistant", " a ", counts=True),
    Message("user", "r"),
    Message("assistant", "b"),
]
WRITTEN = {  # what counts stands in braces
    "plain": "be kind\n q \n{ a </s>}r\nb</s>",
    "instruct-retro": "System: be kind\n\nUser: q\n\nAssistant:{ a</s>}\n\nUser: r\n\nAssistant: b</s>\n\n",
    "chatml": "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\n q <|im_end|>\n"
    "<|im_start|>assistant\n{ a <|im_end|>}\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n",
    "llama-2": "<s>[INST] <<SYS>>\nbe kind\n<</SYS>>\n\n q [/INST]{ a </s>}<s>[INST] r [/INST] b </s>",
    "llama-3": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nbe kind<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nq<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    "{a<|eot_id|>}<|start_header_id|>user<|end_header_id|>\n\nr<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>",
}


def test_every_template_has_a_golden_text():
    assert set(WRITTEN) == set(FORMS)


@pytest.mark.parametrize("name", FORMS)
def test_a_chat_is_written_and_the_answer_that_counts_is_marked(name):
    pieces = NamedTemplate(name, ENDS).pieces(CHAT)
    assert "".join(f"{{{each.text}}}" if each.counts else each.text for each in pieces) == WRITTEN[name]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", FORMS)
def test_the_jinja_of_a_template_gives_the_same_text_in_transformers(name, count):
    from transformers.utils.chat_template_utils import render_jinja_template

    chat = CHAT[1:] if name == "llama-2" and count == 1 else CHAT
    given = [{"role": each.role, "content": each.content} for each in chat[:count]]
    template = NamedTemplate(name, ENDS)
    ours = "".join(each.text for each in template.pieces(chat[:count]))
    more = {"bos_token": "<s>", "eos_token": "</s>"}
    (theirs,), _ = render_jinja_template([given], chat_template=template.jinja, **more)
    assert ours == theirs
    if chat[count - 1].role == "user":  # what a server sends is what precedes an answer in training
        (prompt,), _ = render_jinja_template([given], chat_template=template.jinja, add_generation_prompt=True, **more)
        before = [Message(each.role, each.content) for each in chat[:count]]
        pieces = template.pieces([*before, Message("assistant", "x", counts=True)])
        assert prompt == "".join(each.text for each in pieces[: [each.counts for each in pieces].index(True)])


@pytest.mark.parametrize(
    ("name", "roles", "words"),
    [
        ("llama-2", ["assistant"], "message 0 is of assistant; llama-2 has users and assistants in turn"),
        ("llama-2", ["user", "user"], "message 1 is of user"),
        ("llama-2", ["user", "assistant", "system"], "message 2 is of system"),
        ("plain", ["user", "tool"], "message 1 is of tool; plain has system, user and assistant only"),
        ("instruct-retro", ["tool"], "message 0 is of tool; instruct-retro has"),
    ],
)
def test_messages_without_a_place_are_rejected(name, roles, words):
    with pytest.raises(DataError, match=words):
        NamedTemplate(name, ENDS).pieces([Message(role, "x") for role in roles])
