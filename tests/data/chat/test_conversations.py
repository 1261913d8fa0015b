"""Chats of files: every kind, and lines that are none."""

import gzip
import json

import pytest

from megads.data.chat.conversations import Conversation, Message, read_conversations
from megads.errors import DataError

U, A, S = "user", "assistant", "system"


def turn(role, content, counts=None):
    return Message(role, content, role == A if counts is None else counts)


KINDS = {
    "messages": (
        {"messages": [{"role": S, "content": "s"}, {"role": U, "content": "q"}, {"role": A, "content": "a"}]},
        (turn(S, "s"), turn(U, "q"), turn(A, "a")),
        (),
    ),
    "messages come before prompt": (
        {"prompt": "p", "messages": [{"role": U, "content": "q"}, {"role": A, "content": "a"}]},
        (turn(U, "q"), turn(A, "a")),
        (),
    ),
    "weight and parts": (
        {
            "messages": [
                {"role": U, "content": [{"type": "text", "text": "q"}, {"type": "text", "text": "r"}]},
                {"role": A, "content": "a", "weight": 0},
                {"role": "tool", "content": "t"},
                {"role": A, "content": "b", "weight": 1},
            ]
        },
        (turn(U, "qr"), turn(A, "a", counts=False), turn("tool", "t"), turn(A, "b")),
        (),
    ),
    "response": ({"prompt": "p", "response": " r"}, (turn(U, "p"), turn(A, " r")), ()),
    "completion": ({"prompt": "p", "completion": "c"}, (turn(U, "p"), turn(A, "c")), ()),
    "input": ({"instruction": "i", "input": "x", "output": "o"}, (turn(U, "i\n\nx"), turn(A, "o")), ()),
    "no input": ({"instruction": "i", "input": "", "output": "o"}, (turn(U, "i"), turn(A, "o")), ()),
    "question": ({"question": "q", "answer": " a "}, (turn(U, "q"), turn(A, "a")), ()),
    "answers": ({"question": "q", "answers": ["a", "b"]}, (turn(U, "q"), turn(A, "a")), ()),
    "answers with places": (
        {"question": "q", "answers": [{"text": "a", "start": 3}]},
        (turn(U, "q"), turn(A, "a")),
        (),
    ),
    "a number": ({"question": "q", "answer": 4}, (turn(U, "q"), turn(A, "4")), ()),
    "long": ({"question": "q", "longform_answer": "l"}, (turn(U, "q"), turn(A, "l")), ()),
    "no answer": ({"question": "q"}, (turn(U, "q"), turn(A, "")), ()),
    "ctxs": (
        {"question": "q", "answer": "a", "ctxs": [{"title": "t", "text": "x"}, {"text": "y"}]},
        (turn(U, "q"), turn(A, "a")),
        ("title: t, source: x", "title: , source: y"),
    ),
    "sub-paragraphs": (
        {"question": "q", "answer": "a", "sub-paragraphs": "x"},
        (turn(U, "q"), turn(A, "a")),
        ("title: , source: x",),
    ),
    "sub-paragraphs with a title": (
        {"question": "q", "answer": "a", "sub-paragraphs": ["t", "x"]},
        (turn(U, "q"), turn(A, "a")),
        ("title: t, source: x",),
    ),
    "choices": (
        {"question": "q", "answer": "b", "qa_type": "multi_choice_qa", "multichoice_options": ["a", "b"]},
        (turn(U, "q\n(A) a (B) b"), turn(A, "b")),
        (),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_its_messages_and_contexts(tmp_path, kind):
    row, messages, contexts = KINDS[kind]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n\n")
    assert list(read_conversations(str(path))) == [Conversation(messages, contexts, f"{path}:1")]


def test_kinds_mix_in_a_file_and_an_array_or_a_packed_file_gives_the_same(tmp_path):
    rows = [row for row, _, _ in KINDS.values()]
    lines, array, packed = (tmp_path / name for name in ("a.jsonl", "a.json", "a.jsonl.gz"))
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    array.write_text(json.dumps(rows, indent=1))
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    wanted = [(messages, contexts) for _, messages, contexts in KINDS.values()]
    for path in (lines, array, packed):
        assert [(each.messages, each.contexts) for each in read_conversations(str(path))] == wanted


def test_contexts_stand_in_front_of_the_first_question():
    chat = Conversation((turn(S, "s"), turn(U, "q"), turn(A, "a"), turn(U, "r")), ("x", "y"))
    assert chat.with_contexts() == (turn(S, "s"), turn(U, "x\n\ny\n\nq"), turn(A, "a"), turn(U, "r"))


@pytest.mark.parametrize(
    ("messages", "has_answer"),
    [([turn(U, "q")], False), ([turn(U, "q"), turn(A, " ")], False), ([turn(A, "a", counts=False)], False)],
)
def test_what_has_no_answer(messages, has_answer):
    assert Conversation(tuple(messages)).has_answer is has_answer


BROKEN = {
    "": "has no examples",
    "[]": "has no examples",
    "[1]": "element 0: is not an object",
    "[{]": "is not JSON",
    "5": "expected an object such as",
    "{": "is not JSON",
    "{}": "has no keys; expected messages; prompt and response",
    '{"text": "x"}': "has text; expected messages",
    '{"messages": []}': "messages is []; expected a list",
    '{"messages": "x"}': "messages is 'x'",
    '{"messages": ["x"]}': "message 0 is 'x'",
    '{"messages": [{"content": "x"}]}': "message 0 has the role None; expected system, user",
    '{"messages": [{"role": "bot", "content": "x"}]}': "has the role 'bot'",
    '{"messages": [{"role": "user"}]}': "message 0 has the content None; expected a text",
    '{"messages": [{"role": "user", "content": [{"type": "image"}]}]}': "expected a text",
    '{"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]}': "has the weight 0.5",
    '{"prompt": "x"}': "completion is None; expected a text",
    '{"prompt": " ", "response": "x"}': "prompt is ' '; expected a text",
    '{"prompt": "x", "response": 4}': "response is 4; expected a text",
    '{"instruction": "x", "input": 5, "output": "y"}': "input is 5; expected a text",
    '{"instruction": "x"}': "output is None",
    '{"question": " "}': "question is ' '; expected",
    '{"question": "x", "answer": [[1]]}': "answer holds [1]; expected a text",
    '{"question": "x", "answer": "y", "ctxs": [1]}': "ctxs holds 1",
    '{"question": "x", "answer": "y", "sub-paragraphs": ["a"]}': "sub-paragraphs is ['a']",
    '{"question": "x", "answer": "y", "qa_type": "multi_choice_qa"}': "multichoice_options is None",
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_text(line)
    with pytest.raises(DataError) as caught:
        list(read_conversations(str(path)))
    text = str(caught.value)
    assert text.startswith(str(path)), text
    assert BROKEN[line] in text, text
    assert "\n" not in text
