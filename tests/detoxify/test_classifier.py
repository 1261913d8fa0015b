"""A classifier of transformers, against transformers."""

from __future__ import annotations

import json

import pytest
import torch

from megads.detoxify.classifier import Classifier
from megads.errors import ConfigError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "you", "are", "nice", "bad", "so", "very"]


def _save(folder, labels, **more):
    """Save a random classifier; return it."""
    import transformers

    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        id2label=dict(enumerate(labels)),
        label2id={name: number for number, name in enumerate(labels)},
        initializer_range=0.5,
        **more,
    )
    torch.manual_seed(1)
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return model


def _logits(folder, model, text):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return model(**tokenizer(text, return_tensors="pt", truncation=True, max_length=12)).logits[0]


TEXTS = ["you are nice", "bad", "you are so very bad " * 5, "nice nice"]


def test_classes_that_exclude_each_other(tmp_path):
    model = _save(tmp_path / "m", ["neutral", "TOXIC"])
    scorer = Classifier(tmp_path / "m", batch=3)
    assert scorer.batch == 3
    for text, found in zip(TEXTS, scorer.score(TEXTS), strict=True):
        expected = _logits(tmp_path / "m", model, text).softmax(-1)
        assert list(found) == ["toxicity", "neutral", "toxic"]
        assert found["toxicity"] == found["toxic"] == pytest.approx(float(expected[1]), abs=1e-5)
    assert Classifier(tmp_path / "m", "neutral").score(["bad"])[0]["toxicity"] == scorer.score(["bad"])[0]["neutral"]
    with pytest.raises(ConfigError, match="--label rude: the model has neutral and toxic"):
        Classifier(tmp_path / "m", "rude")


def test_a_decoder_without_a_token_for_padding_scores_each_text_by_itself(tmp_path):
    import transformers

    folder = tmp_path / "m"
    _save(folder, ["neutral", "toxic"])
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt"), pad_token=None).save_pretrained(folder)
    config = transformers.GPT2Config(
        vocab_size=len(WORDS), n_embd=16, n_layer=1, n_head=2, n_positions=12, id2label={0: "neutral", 1: "toxic"}
    )
    assert config.pad_token_id is None
    torch.manual_seed(1)
    model = transformers.GPT2ForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    found = Classifier(folder, batch=4).score(TEXTS)
    for text, each in zip(TEXTS, found, strict=True):
        assert each["toxicity"] == pytest.approx(float(_logits(folder, model, text).softmax(-1)[1]), abs=1e-5)
    assert len({each["toxicity"] for each in found}) > 2


def test_several_classes_of_one_text_and_one_output(tmp_path):
    model = _save(tmp_path / "m", ["threat", "toxicity"], problem_type="multi_label_classification")
    for text, found in zip(TEXTS, Classifier(tmp_path / "m").score(TEXTS), strict=True):
        expected = _logits(tmp_path / "m", model, text).sigmoid()
        assert found == {
            "toxicity": pytest.approx(float(expected[1]), abs=1e-5),
            "threat": pytest.approx(float(expected[0]), abs=1e-5),
        }
    model = _save(tmp_path / "one", ["LABEL_0"])
    expected = _logits(tmp_path / "one", model, "bad").sigmoid()
    assert Classifier(tmp_path / "one").score(["bad"])[0]["toxicity"] == pytest.approx(float(expected[0]), abs=1e-5)
    model = _save(tmp_path / "r", ["a", "toxicity"], problem_type="regression")
    for text, found in zip(TEXTS, Classifier(tmp_path / "r").score(TEXTS), strict=True):
        expected = _logits(tmp_path / "r", model, text)
        assert [found["a"], found["toxicity"]] == pytest.approx(
            [min(1, max(0, float(each))) for each in expected], abs=1e-5
        )


def test_folders_that_are_no_such_classifier(tmp_path):
    _save(tmp_path / "m", ["LABEL_0", "LABEL_1"])
    with pytest.raises(
        ConfigError, match="has the classes label_0 and label_1; say with --label which one is toxicity"
    ):
        Classifier(tmp_path / "m")
    with pytest.raises(ConfigError, match="has no config"):
        Classifier(tmp_path)
    with pytest.raises(ConfigError, match="--scorer hf needs --model DIR"):
        Classifier(None)
    config = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps({**config, "model_type": "nothing"}))
    with pytest.raises(ConfigError, match=r"m: transformers cannot load it: "):
        Classifier(tmp_path / "m")


def test_a_language_model_is_refused(tmp_path):
    import transformers

    model = _save(tmp_path / "m", ["neutral", "toxic"])
    transformers.BertModel(model.config).save_pretrained(tmp_path / "m")
    with pytest.raises(
        ConfigError, match=r"lacks the weights classifier.bias and classifier.weight; is it a classifier"
    ):
        Classifier(tmp_path / "m")
