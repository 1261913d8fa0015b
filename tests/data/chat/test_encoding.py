"""Tokens of chats equal transformers', and those that count are those of answers."""

import numpy as np
import pytest

from megads.data.chat.conversations import Message
from megads.data.chat.encoding import ChatEncoder
from megads.data.chat.examples import find_template
from megads.data.chat.folder_template import ChatTemplate, FolderTemplate
from megads.data.chat.templates import FORMS, Piece
from megads.data.tokenizers.base import TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from tests.data.chat.tiny import tokenizer_of, write_tokenizer

CHAT = [
    Message("system", "You are kind ."),
    Message("user", "What is the capital of France ? \N{SNOWMAN}\N{GRINNING FACE}"),
    Message("assistant", "Paris \N{SNOWMAN}", counts=True),
    Message("user", "and Rome"),
    Message("assistant", "Rome !", counts=True),
]
MARKED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{{ '[A] ' }}{% generation %}"
    "{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ '[' + m.role + '] ' + m.content + '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[A] ' }}{% endif %}"
)
PLAIN = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def theirs(folder, template=None, **more):
    from transformers import AutoTokenizer

    given = [{"role": each.role, "content": each.content} for each in CHAT]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer.apply_chat_template(given, chat_template=template, return_dict=True, **more)


@pytest.mark.parametrize("name", FORMS)
def test_a_named_template_gives_the_tokens_of_transformers(tmp_path, name):
    folder = write_tokenizer(tmp_path)
    tokenizer = tokenizer_of(folder)
    template = find_template(name, tokenizer)
    ids, counts = ChatEncoder(tokenizer)(template.pieces(CHAT))
    assert ids.tolist() == theirs(folder, template.jinja)["input_ids"]
    marks = "".join("A" if flag else "." for flag in counts)
    answers = [tokenizer.decode(ids[begin:end]) for begin, end in spans(marks)]
    end, blank = FORMS[name].end or "</s>", " " if name in ("llama-2", "instruct-retro") else ""
    behind = " " if name == "llama-2" else ""
    assert answers == [f"{blank}{each.content}{behind}{end}" for each in CHAT if each.counts]


def test_blanks_of_an_answer_count_though_the_tokenizer_leaves_them_out_of_the_places_of_its_tokens(tmp_path):
    import json

    folders = [write_tokenizer(tmp_path / name) for name in ("whole", "trimmed")]
    path = folders[1] / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"]["trim_offsets"] = True  # as in GPT-NeoX's
    path.write_text(json.dumps(content))
    pieces = [Piece("What   "), Piece("   is\n\n    kind   \n ", counts=True), Piece("  one")]
    (ids, counts), (found, found_counts) = (ChatEncoder(tokenizer_of(folder))(pieces) for folder in folders)
    assert found.tolist() == ids.tolist()
    assert found_counts.tolist() == counts.tolist()
    assert tokenizer_of(folders[1]).decode(found[found_counts]).strip(" ") == "is\n\n    kind   \n"


def spans(marks):
    import re

    return [match.span() for match in re.finditer("A+", marks)]


@pytest.mark.parametrize("template", [MARKED, PLAIN])
def test_the_template_of_a_folder_gives_the_tokens_and_the_mask_of_transformers(tmp_path, template):
    folder = write_tokenizer(tmp_path, template)
    tokenizer = tokenizer_of(folder)
    found = find_template("auto", tokenizer)
    assert isinstance(found, FolderTemplate)
    ids, counts = ChatEncoder(tokenizer)(found.pieces(CHAT))
    wanted = theirs(folder, MARKED, return_assistant_tokens_mask=True)
    assert ids.tolist() == wanted["input_ids"]
    assert counts.tolist() == [bool(each) for each in wanted["assistant_masks"]]
    assert 0 < counts.sum() < len(counts)


def test_a_token_with_the_end_of_the_prompt_and_the_begin_of_the_answer_counts_as_in_transformers(tmp_path):
    encoder = ChatEncoder(tokenizer_of(write_tokenizer(tmp_path)))
    ids, counts = encoder([Piece("What is "), Piece("Paris", counts=True)])  # one token holds the blank and Paris
    assert encoder.tokenizer.decode(ids[counts]) == " Paris"
    ids, counts = encoder([Piece("What is"), Piece(" Paris", counts=True), Piece(" and")])
    assert encoder.tokenizer.decode(ids[counts]) == " Paris"


def test_numbers_for_tokens():
    encoder = ChatEncoder(make_tokenizer(TokenizerSpec("NullTokenizer", vocab_size=64)))
    assert encoder.ends.eos == "<eod>"
    ids, counts = encoder([Piece("1 2\n"), Piece("3 4<eod>", counts=True)])
    assert (ids.tolist(), counts.tolist()) == ([1, 2, 3, 4, 63], [False, False, True, True, True])
    assert encoder.id_of("<eod>") == 63
    assert encoder.id_of("<|im_end|>") is None


def test_pieces_of_a_tokenizer_without_places_are_encoded_one_by_one(tmp_path):
    import io

    import sentencepiece

    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["what is the capital of France Paris Rome"] * 20),
        model_writer=made,
        vocab_size=40,
        model_type="bpe",
        hard_vocab_limit=False,
    )
    (tmp_path / "t.model").write_bytes(made.getvalue())
    tokenizer = make_tokenizer(TokenizerSpec("Llama2Tokenizer", str(tmp_path / "t.model")))
    encoder = ChatEncoder(tokenizer)
    assert encoder.ends.bos, encoder.ends.eos == ("<s>", "</s>")
    ids, counts = encoder([Piece("<s>what is"), Piece("Paris</s>", counts=True)])
    model = tokenizer.processor
    assert ids.tolist() == [model.bos_id(), *model.encode("what is"), *model.encode("Paris"), model.eos_id()]
    assert ids[counts].tolist() == [*model.encode("Paris"), model.eos_id()]


def test_the_template_object_of_a_server_and_of_training_are_one(tmp_path):
    folder = write_tokenizer(tmp_path, PLAIN)
    found = find_template("auto", tokenizer_of(folder))
    given = [{"role": each.role, "content": each.content} for each in CHAT]
    served = ChatTemplate(folder).render(given, add_generation_prompt=False)
    assert "".join(each.text for each in found.pieces(CHAT)) == served
    assert np.array_equal(ChatEncoder(tokenizer_of(folder))(found.pieces(CHAT))[0], theirs(folder)["input_ids"])
