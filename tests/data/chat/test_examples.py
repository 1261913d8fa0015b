"""Examples: the mask by hand, how long ones are cut, and what has nothing to learn."""

import json

import numpy as np
import pytest

from megads.data.chat.conversations import Conversation, Message, read_conversations
from megads.data.chat.examples import ExampleMaker, find_template
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.errors import ConfigError, DataError
from tests.data.chat.tiny import SPECIAL, tokenizer_of, write_tokenizer

NUMBERS = make_tokenizer(TokenizerSpec("NullTokenizer", vocab_size=64))
END = 63


def maker(seq_length=16, vocab_size=64):
    return ExampleMaker(NUMBERS, find_template("plain", NUMBERS), seq_length, vocab_size)


def chat(*messages, contexts=()):
    made = [Message(role, text, role == "assistant" and counts) for role, text, counts in messages]
    return Conversation(tuple(made), contexts, "a.jsonl:1")


def pair(question, answer, contexts=()):
    return chat(("user", question, False), ("assistant", answer, True), contexts=contexts)


def rows(example):
    return example.tokens.tolist(), example.labels.tolist()


KINDS = {
    "prompt": ({"prompt": "1 2", "response": "3 4"}, [1, 2, 3, 4], [-1, 3, 4, END]),
    "instruction": ({"instruction": "1", "input": "2", "output": "3"}, [1, 2, 3], [-1, 3, END]),
    "question": ({"question": "1", "answers": ["2 3"]}, [1, 2, 3], [2, 3, END]),
    "messages": (
        {
            "messages": [
                {"role": "system", "content": "9"},
                {"role": "user", "content": "1"},
                {"role": "assistant", "content": "2 3"},
                {"role": "user", "content": "4"},
                {"role": "assistant", "content": "5"},
                {"role": "user", "content": "6"},
            ]
        },
        [9, 1, 2, 3, END, 4, 5],
        [-1, 2, 3, END, -1, 5, END],
    ),
    "weight": (
        {
            "messages": [
                {"role": "user", "content": "1"},
                {"role": "assistant", "content": "2", "weight": 0},
                {"role": "user", "content": "3"},
                {"role": "assistant", "content": "4"},
            ]
        },
        [1, 2, END, 3, 4],
        [-1, -1, -1, 4, END],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_and_their_ends_count_and_nothing_else(tmp_path, kind):
    row, tokens, labels = KINDS[kind]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row))
    (given,) = read_conversations(str(path))
    example = maker()(given)
    assert rows(example) == (tokens, labels)
    assert len(example) == len(tokens)


def test_what_fits_is_whole_and_one_token_less_loses_the_end_of_the_answer():
    given = pair("1 2", "3 4 5")
    assert rows(maker(5)(given)) == ([1, 2, 3, 4, 5], [-1, 3, 4, 5, END])
    short = maker(4)
    assert rows(short(given)) == ([1, 2, 3, 4], [-1, 3, 4, 5])
    assert short.report.lines("f") == ["f: 1 chat longer than SEQ lose their ends"]


def test_turns_behind_the_last_token_that_fits_are_cut_and_a_row_ends_with_an_answer():
    given = chat(("user", "1", False), ("assistant", "2", True), ("user", "3 4 5 6", False), ("assistant", "7", True))
    assert rows(maker(5)(given)) == ([1, 2], [2, END])


def test_an_example_of_which_no_answer_is_left_is_skipped_and_counted():
    short = maker(3)
    assert short(pair("1 2 3 4", "5")) is None
    assert short(pair("1", " ")) is None
    assert short(chat(("user", "1", False))) is None
    assert short(chat(("assistant", "", True), ("user", "1", False))) is None
    assert short(pair("1 2", "5")) is not None
    assert short.report.lines("f") == [
        "f: 3 of 5 chats skipped, without an answer",
        "f: 1 of 5 chats skipped, whose answer begins behind SEQ tokens",
    ]


@pytest.mark.parametrize("seq_length", range(4, 13))
def test_contexts_are_cut_first_at_the_end_and_the_answer_stays_whole(seq_length):
    given = pair("1 2", "3", contexts=("11 12 13", "14 15 16"))
    made = maker(seq_length)
    example = made(given)
    words = [11, 12, 13, 14, 15, 16][: max(0, seq_length - 3)]
    assert example.tokens.tolist() == [*words, 1, 2, 3]
    assert example.labels.tolist() == [*[-1] * len(words), -1, 3, END]
    assert " ".join(example.contexts).split() == [str(each) for each in words]
    assert made.report.counts["shorter_contexts"] == (seq_length < 9)


def test_a_token_that_the_model_does_not_know_names_the_line():
    with pytest.raises(DataError, match=r"a.jsonl:1: the text gives token 63, but the model knows 50 tokens"):
        maker(vocab_size=50)(pair("1", "2"))
    with pytest.raises(DataError, match=r"a.jsonl:1: NullTokenizer: 'x.*' is not a row of token ids"):
        maker()(pair("x", "2"))


def test_labels_are_the_tokens_that_follow_of_any_text(tmp_path):
    tokenizer = tokenizer_of(write_tokenizer(tmp_path))
    made = ExampleMaker(tokenizer, find_template("chatml", tokenizer), 500)
    given = pair("What is the capital of France ?", "Paris", contexts=("title: one, source: two",))
    example = made(given)
    ids, flags = made.tokens_of(given)
    assert np.array_equal(example.tokens, ids[: len(example)])
    counted = example.labels >= 0
    assert np.array_equal(example.labels[counted], ids[flags])
    assert tokenizer.decode(example.labels[counted]) == "Paris<|im_end|>"
    assert example.contexts == given.contexts


@pytest.mark.parametrize(
    ("name", "special", "words"),
    [
        ("chatgpt", SPECIAL, "CHAT_TEMPLATE=chatgpt: not one of auto, plain, instruct-retro, chatml, llama-2, llama-3"),
        ("chatml", ("</s>",), "CHAT_TEMPLATE=chatml: the tokenizer has no token <|im_start|>"),
        ("llama-3", ("</s>",), "has no token <|begin_of_text|>"),
        ("llama-2", ("</s>",), "has no token that begins a text"),
        ("plain", ("<x>",), "has no token that ends an answer"),
    ],
)
def test_templates_that_do_not_fit_a_vocabulary_are_rejected(tmp_path, name, special, words):
    tokenizer = tokenizer_of(write_tokenizer(tmp_path, special=special))
    with pytest.raises(ConfigError, match=words.replace("|", r"\|")):
        find_template(name, tokenizer)


def test_a_folder_without_a_template_has_the_plain_one(tmp_path):
    tokenizer = tokenizer_of(write_tokenizer(tmp_path))
    assert find_template("auto", tokenizer).name == "plain"
    assert find_template("auto", NUMBERS).name == "plain"
