"""Heads that score texts: transformers' scores, loss and every gradient, in and out; each row by the state it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from megads.checkpoint.convert.huggingface.config import architecture_of
from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.checkpoint.convert.huggingface.names import tensors_of
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.resume.compatibility import classes_of, model_of
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.models.build import model_class
from megads.models.classifier import RowScores, class_losses
from megads.parallel.documents import Documents, Lengths
from tests.checkpoint.convert.huggingface.models import exported
from tests.models.noisy import ONE

LENGTHS = (12, 5, 1, 7, 12, 2)
CHOICES = 3
_DECODER: dict[str, Any] = {
    **{"vocab_size": 53, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16, "initializer_range": 0.2},
    "pad_token_id": 0,
}
_ENCODER: dict[str, Any] = {
    **{key: value for key, value in _DECODER.items() if key != "num_key_value_heads"},
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
}
_GPT2 = {"vocab_size": 53, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "initializer_range": 0.2}
_NAMED = {"id2label": {0: "no", 1: "yes", 2: "so so"}, "label2id": {"no": 0, "yes": 1, "so so": 2}}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
THEIRS: dict[str, transformers.PreTrainedConfig] = {
    "BertForSequenceClassification": transformers.BertConfig(**_ENCODER, **_NAMED),
    "BertForMultipleChoice": transformers.BertConfig(**_ENCODER),
    "MegatronBertForSequenceClassification": transformers.MegatronBertConfig(**_ENCODER, **_NAMED),
    "MegatronBertForMultipleChoice": transformers.MegatronBertConfig(**_ENCODER),
    "GPT2ForSequenceClassification": transformers.GPT2Config(**_GPT2, **NO_DROPOUT, num_labels=3, pad_token_id=0),
    "LlamaForSequenceClassification": transformers.LlamaConfig(**_DECODER, **_NAMED),
    "MistralForSequenceClassification": transformers.MistralConfig(**_DECODER, sliding_window=None, num_labels=2),
    "Qwen3ForSequenceClassification": transformers.Qwen3Config(**_DECODER, head_dim=12, num_labels=4),
    "Olmo2ForSequenceClassification": transformers.Olmo2Config(**_DECODER, num_labels=3),
}


def _theirs(name: str, folder: Path) -> nn.Module:
    torch.manual_seed(0)
    module = getattr(transformers, name)(THEIRS[name])
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    module.save_pretrained(folder)
    return module


def _batch(name: str) -> tuple[Tensor, Documents, Tensor]:
    """Return texts of many lengths, what goes with them, and labels."""
    generator = torch.Generator().manual_seed(2)
    lengths = Lengths(torch.tensor(LENGTHS), 12)
    real = lengths.mask[:, 0, 0]
    text = torch.randint(1, 53, (len(LENGTHS), 12), generator=generator).masked_fill(~real, 0)
    types = (torch.arange(12) >= lengths.tokens.unsqueeze(1) // 2).long() * real if "Bert" in name else None
    labels = torch.tensor([1, 2] if name.endswith("Choice") else [1, 0, 1, 1, 0, 0])
    return text, Documents(lengths=lengths, types=types), labels


def _scores(module: nn.Module, name: str) -> Tensor:
    text, documents, _ = _batch(name)
    named = {"input_ids": text, "attention_mask": documents.lengths.mask[:, 0, 0].long()}
    if documents.types is not None:
        named["token_type_ids"] = documents.types
    if name.endswith("Choice"):
        named = {key: value.view(-1, CHOICES, value.shape[1]) for key, value in named.items()}
    return module.eval()(**named).logits


def _ours(path: Path) -> tuple[RowScores, ModelConfig]:
    with Reader(path) as reader:
        model = model_of(path, reader.manifest, scores=True)
        model = model.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0})
        module = model_class(model)(model, ONE)
        module.load_state_dict({key: torch.from_numpy(reader.whole(key)) for key in reader.manifest.tensors})
    assert isinstance(module, RowScores)
    return module.double(), model


def _near(found: Tensor, wanted: Tensor, what: str, tolerance: float = 1e-10) -> None:
    error = (found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12)
    assert error <= tolerance, f"{what}: {error:.2e}"


@pytest.mark.parametrize("name", THEIRS)
def test_scores_loss_and_gradients_equal_transformers_and_the_way_out_is_bitwise(tmp_path, name):
    theirs = _theirs(name, tmp_path / "theirs").double()
    done = import_folder(tmp_path / "theirs", tmp_path / "ours", vocab_multiple=8)
    ours, model = _ours(done.path)
    assert (model.num_classes, architecture_of(model, name)) == (getattr(theirs, "num_labels", 1), name)
    text, documents, labels = _batch(name)
    expected = _scores(theirs, name)
    found = ours.scores(_states(ours, text, documents), documents)
    # RMSNorm and rotary tables of transformers are float32 whatever the type of the weights is.
    tolerance = 1e-10 if "Bert" in name or "GPT2" in name else 5e-6
    _near(found.view(expected.shape), expected, "scores", tolerance)
    nn.functional.cross_entropy(expected, labels).backward()
    loss = ours.loss(found, labels)
    loss.backward()
    _near(loss, nn.functional.cross_entropy(expected, labels), "loss", tolerance)
    gradients = {key: weight.grad for key, weight in theirs.named_parameters()}
    wanted: dict[str, list[Tensor]] = {}
    for part in tensors_of(model, name):
        gradient = gradients[part.name]
        wanted.setdefault(part.ours, []).append(gradient.t() if part.transposed else gradient)
    assert wanted.keys() == dict(ours.named_parameters()).keys()
    for key, weight in ours.named_parameters():
        if key == "classifier.bias" and name.endswith("Choice"):
            assert weight.grad.abs().max() < 1e-12  # all choices have it
        else:
            whole = torch.cat(wanted[key])
            _near(weight.grad[: len(whole)], whole, key, tolerance)
    exported(done.path, tmp_path / "again")
    again, config = getattr(transformers, name).from_pretrained(tmp_path / "again"), THEIRS[name]
    before, after = (load_file(tmp_path / each / "model.safetensors") for each in ("theirs", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[each], after[each]) for each in before)
    assert again.config.id2label == config.id2label
    assert torch.equal(_scores(again.double(), name), expected)


def _states(module: RowScores, text: Tensor, documents: Documents) -> Tensor:
    x = text
    for step in module.steps(documents)[:-1]:
        x = step(x)
    return x


def test_names_of_classes_come_in(tmp_path):
    for name, names in (("LlamaForSequenceClassification", ("no", "yes", "so so")), ("BertForMultipleChoice", ())):
        _theirs(name, tmp_path / name)
        done = import_folder(tmp_path / name, tmp_path / f"our-{name}", vocab_multiple=8)
        with Reader(done.path) as reader:
            assert classes_of(reader.manifest) == names


def test_a_head_of_several_right_answers_is_refused(tmp_path):
    config = transformers.BertConfig(**_ENCODER, problem_type="multi_label_classification")
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "theirs")
    with pytest.raises(CheckpointError, match="problem_type='multi_label_classification' is not supported; "):
        import_folder(tmp_path / "theirs", tmp_path / "ours")


def test_rows_that_do_not_count_have_no_loss():
    scores = torch.tensor([[1.0, 3.0], [0.0, 2.0], [5.0, 1.0]])
    losses, best, likely = class_losses(scores, torch.tensor([1, -1, 1]))
    assert losses.tolist() == pytest.approx([0.126928, 0, 4.01815], rel=1e-4)
    assert best.tolist() == [1, 1, 0]
    assert likely.tolist() == pytest.approx([0.880797, 0.880797, 0.982014], rel=1e-5)
    losses, best, _ = class_losses(scores.view(6, 1), torch.tensor([0, 0]))  # three choices of two rows
    assert best.tolist() == [1, 1]
    assert losses.tolist() == pytest.approx([2.169846, 3.065884], rel=1e-5)
