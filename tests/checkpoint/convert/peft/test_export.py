"""What is exported is loaded by transformers and peft, and gives our logits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from megads.checkpoint.convert.huggingface.export import export
from megads.checkpoint.convert.peft.export import export_adapters
from megads.checkpoint.convert.peft.import_ import import_adapters
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.lora.merged import open_for_use
from megads.errors import CheckpointError
from tests.checkpoint.convert.huggingface.models import assert_same_logits
from tests.checkpoint.convert.peft.models import loaded, our_module
from tests.checkpoint.lora.made import ADAPTED, make_both
from tests.models.shapes import GPT

MODELS = {
    "llama": (ADAPTED, ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
    "llama-some": (ADAPTED.model_copy(update={"lora_targets": "q up"}), ["q_proj", "up_proj"]),
    "gpt": (GPT.model_copy(update={"lora_rank": 2}), ["c_attn", "c_fc", "c_proj"]),
    "gpt-joined": (GPT.model_copy(update={"lora_rank": 2, "lora_targets": "q v down"}), ["c_attn", "mlp.c_proj"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_peft_gives_our_logits(tmp_path, name):
    model, targets = MODELS[name]
    adapters, base, _ = make_both(tmp_path, model)
    with Reader(adapters.path) as reader:
        assert export_adapters(reader, tmp_path / "out", base="mine") == targets
    with Reader(base.path) as reader:
        export(reader, tmp_path / "hf")
    theirs = loaded(tmp_path / "hf", tmp_path / "out")
    assert_same_logits(our_module(adapters.path), theirs, length=12)
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "mine"
    if name == "gpt-joined":
        assert config["rank_pattern"] == {"attn.c_attn": 4}
        return
    back, again = import_adapters(tmp_path / "out", tmp_path / "back", base)
    assert (again.lora_rank, again.lora_alpha) == (model.lora_rank, model.lora_alpha)
    with Reader(back) as ours, Reader(adapters.path) as first:
        assert ours.manifest.tensors.keys() == first.manifest.tensors.keys()
        for parameter in first.manifest.tensors:
            np.testing.assert_array_equal(ours.whole(parameter), first.whole(parameter))


def test_a_merged_model_gives_the_logits_of_its_adapters(tmp_path):
    adapters, _, _ = make_both(tmp_path, ADAPTED)
    with open_for_use(adapters) as reader:
        export(reader, tmp_path / "hf")
    assert_same_logits(our_module(adapters.path), AutoModelForCausalLM.from_pretrained(tmp_path / "hf"), length=12)


def test_a_plain_checkpoint_has_none(tmp_path):
    _, base, _ = make_both(tmp_path)
    with Reader(base.path) as reader, pytest.raises(CheckpointError, match="holds no adapters"):
        export_adapters(reader, tmp_path / "out")
    assert not (tmp_path / "out").exists()
