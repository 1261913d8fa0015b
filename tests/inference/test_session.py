"""A model from files to text, on one rank."""

from __future__ import annotations

import json
import shutil

import pytest
import tokenizers
import transformers

from megads.errors import ConfigError, MegadsError
from megads.inference.generate import Prompt, generate, leave
from megads.inference.sampling import Sampling
from megads.inference.session import SessionRequest, open_session
from tests.inference.letters import LETTERS
from tests.inference.their_t5 import START, folder_of, module_of
from tests.inference.theirs import imported


@pytest.fixture
def folder(tmp_path):
    """Return a Hugging Face folder with a tokenizer of letters, two of which end a text."""
    place = shutil.copytree(imported("mistral-window") / "theirs", tmp_path / "theirs")
    model = tokenizers.models.WordLevel({letter: number for number, letter in enumerate(LETTERS)}, unk_token="Z")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    made.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"eos_token": "Z"}))
    (place / "generation_config.json").write_text(json.dumps({"eos_token_id": [51, 52]}))
    return place


def test_a_hugging_face_folder_generates_with_its_own_tokenizer_and_ends(folder, request):
    session = open_session(SessionRequest(folder), {})
    request.addfinalizer(leave)
    assert session.eos == (51, 52)
    assert "context 32" in session.summary
    assert session.tokenizer_path == str(folder)
    (made,) = generate(session, [Prompt("hello")], Sampling(max_tokens=6, temperature=0, ignore_eos=True))
    assert (made["tokens"], len(made["text"])) == (6, 6)
    assert not list(folder.glob("iter_*"))


def test_a_context_beyond_the_sliding_window_is_rejected(folder):
    with pytest.raises(ConfigError, match="--context 33: the model has a sliding window of 32 tokens; use at most 32"):
        open_session(SessionRequest(folder, context=33), {})


def test_a_tokenizer_that_was_not_fetched_is_one_line(folder):
    (folder / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(MegadsError) as error:
        open_session(SessionRequest(folder), {})
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_layout_of_other_ranks_is_rejected(folder):
    with pytest.raises(ConfigError, match="DP=2 x TP=1 x PP=1 are 2 ranks, and 1 started; start as many, or leave DP"):
        open_session(SessionRequest(folder, replicas=2), {})
    with pytest.raises(ConfigError, match="TP=1 x PP=1 x SP=2 does not divide the 1 ranks that started; start a mult"):
        open_session(SessionRequest(folder, sequence=2), {})


def test_an_encoder_predicts_no_text(tmp_path):
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sizes, intermediate_size=32, max_position_embeddings=16)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="a model of the family bert does not predict a text from its beginning"):
        open_session(SessionRequest(tmp_path), {})


def _add_letters(place, **config):
    """Write a tokenizer of letters that ends each text, as T5's does."""
    vocab = {letter: number for number, letter in enumerate(LETTERS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="Z"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    made.post_processor = tokenizers.processors.TemplateProcessing("$A Z", special_tokens=[("Z", 52)])
    made.save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"eos_token": "Z", "pad_token": "Y", **config}))


@pytest.mark.parametrize("source", ["theirs", "ours"])
def test_a_t5_answers_texts_with_the_tokenizer_start_and_end_of_its_folder(source, tmp_path, request):
    place = shutil.copytree(folder_of("t5-v1.1") / source, tmp_path / source)
    _add_letters(tmp_path)
    session = open_session(SessionRequest(place, tokenizer=str(tmp_path), uses=("causal", "t5")), {})
    request.addfinalizer(leave)
    assert (session.runner.start, session.continues, session.end) == (START, False, session.eos[0])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    made = generate(session, [Prompt("hello"), Prompt("a")], Sampling(max_tokens=9, temperature=0, ignore_eos=True))
    for text, record in zip(("hello", "a"), made, strict=True):
        tokens = tokenizer(text, return_tensors="pt")
        assert tokens["input_ids"][0, -1] == 52
        wanted = module_of("t5-v1.1").generate(
            tokens["input_ids"], attention_mask=tokens["attention_mask"], max_new_tokens=9, use_cache=False
        )
        assert record["text"] == record["all_text"] == tokenizer.decode(wanted[0, 1:])


def test_what_an_encoder_with_a_decoder_is_of_no_use_for(tmp_path):
    _add_letters(tmp_path)
    place = folder_of("t5-v1.1") / "theirs"
    with pytest.raises(ConfigError, match=r"family t5 does not predict a text .* `megads serve` have it answer texts"):
        open_session(SessionRequest(place, tokenizer=str(tmp_path)), {})
