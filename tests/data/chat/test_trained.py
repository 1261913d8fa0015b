"""The chat template of a trained model: in its checkpoint's settings, for servers, and in an exported folder."""

import json

import pytest

from megads.data.chat.conversations import Message
from megads.data.chat.encoding import ChatEncoder
from megads.data.chat.examples import find_template
from megads.data.chat.templates import FORMS
from megads.data.chat.trained import folder_of, form_of, save_template, tokens_of_chat, trained_template
from megads.data.tokenizers.base import TokenizerSpec
from tests.data.chat.tiny import tokenizer_of, write_tokenizer

QUESTION = [{"role": "user", "content": "What is the capital of France ?"}]


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        ({}, ""),
        ({"finetune": {"task": "jsonl", "chat_template": "chatml"}}, ""),
        ({"finetune": {"task": "chat", "chat_template": "chatml"}}, "chatml"),
        ({"finetune": {"task": "chat"}}, "auto"),
    ],
)
def test_the_settings_of_a_run_say_which_template_it_has(settings, form):
    assert form_of(settings) == form


def test_the_folder_of_a_tokenizer(tmp_path):
    assert folder_of("") is None
    assert folder_of(str(tmp_path)) == folder_of(str(tmp_path / "tokenizer.json")) == tmp_path


@pytest.mark.parametrize("form", [*FORMS, "auto"])
def test_a_question_is_what_precedes_an_answer_in_training_and_its_end_is_known(tmp_path, form):
    """Also without a tokenizer_config.json that names special tokens: they are those of training."""
    folder = write_tokenizer(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    tokenizer = tokenizer_of(folder)
    template, ends = trained_template(form, tokenizer, str(folder))
    chat = [Message("user", QUESTION[0]["content"]), Message("assistant", "Paris", counts=True)]
    ids, counts = ChatEncoder(tokenizer)(find_template(form, tokenizer).pieces(chat))
    answer = int(counts.argmax())
    assert tokens_of_chat(tokenizer, template, QUESTION) == ids[:answer].tolist()
    name = FORMS[form].end if form != "auto" else ""
    assert ends == (tokenizer.inner.token_to_id(name or "</s>"),)
    assert ids[counts][-1] == ends[0]


@pytest.mark.parametrize("form", FORMS)
def test_an_exported_folder_gives_transformers_the_prompt_of_training(tmp_path, form):
    from transformers import AutoTokenizer

    source, folder = write_tokenizer(tmp_path / "a"), write_tokenizer(tmp_path / "b")
    about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    ends = save_template(form, TokenizerSpec("HFTokenizer", str(source)), folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    tokenizer = tokenizer_of(source)
    template, _ = trained_template(form, tokenizer, str(source))
    wanted = theirs.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert tokens_of_chat(tokenizer, template, QUESTION) == wanted
    assert ends
    named = json.loads((folder / "tokenizer_config.json").read_text())
    assert ("bos_token" in named) == (form == "llama-2")


def test_a_template_that_wants_other_messages_has_no_known_end(tmp_path):
    text = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}"
    folder = write_tokenizer(tmp_path, text)
    template, ends = trained_template("auto", tokenizer_of(folder), str(folder))
    assert (template.text, ends) == (text, ())
