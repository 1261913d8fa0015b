"""A model of transformers with adapters of peft, random ones, and the same as ours."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.checkpoint.format.folders import CheckpointRef
from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.lora.base import base_of
from megads.checkpoint.resume.compatibility import model_of
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.models.build import freeze
from megads.models.gpt import GPT
from tests.checkpoint.convert.huggingface.models import their_module

TARGETS = {
    "llama3": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2": ["c_attn", "c_proj", "c_fc"],
}


def ref(path: Path) -> CheckpointRef:
    return CheckpointRef(path, read_manifest(path))


def with_adapters(kind: str, targets: list[str], **more: Any) -> Any:
    """Return peft's model of random weights and random adapters."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    options = {"r": 3, "lora_alpha": 5, "target_modules": targets, "task_type": "CAUSAL_LM", **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(their_module(kind).eval(), LoraConfig(**options))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(0, 0.2)
    return model


def saved(folder: Path, kind: str, targets: list[str], **more: Any) -> tuple[Any, CheckpointRef]:
    """Save peft's model in ``theirs``, its base in ``hf``; return it, and the base that was imported."""
    model = with_adapters(kind, targets, **more)
    model.save_pretrained(folder / "theirs")
    their_module(kind).save_pretrained(folder / "hf")
    return model, ref(import_folder(folder / "hf", folder / "base", vocab_multiple=1).path)


def our_module(path: Path) -> GPT:
    """Return our model, with adapters that are trained, of a checkpoint of adapters."""
    found = ref(path)
    model = model_of(path, found.manifest)
    module = GPT(model.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0}), Groups(Grid(), 0))
    base = base_of(path, found.manifest)
    state = {}
    for each in (base, found):
        with Reader(each.path, each.manifest) as reader:
            state |= {name: torch.from_numpy(reader.whole(name)) for name in reader.manifest.tensors}
    module.load_state_dict(state)
    freeze(module)
    return module.eval()


def loaded(model: Path, adapters: Path) -> Any:
    """Return what peft makes of a model of transformers and a folder of adapters."""
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(model), adapters)
