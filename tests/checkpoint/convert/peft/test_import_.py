"""An adapter of peft is read as ours: its logits, its gradients and three steps of AdamW; what is not is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from megads.checkpoint.convert.peft.import_ import import_adapters
from megads.checkpoint.format.manifest import read_manifest
from megads.errors import CheckpointError
from tests.checkpoint.convert.huggingface.models import assert_same_logits
from tests.checkpoint.convert.peft.models import TARGETS, our_module, ref, saved

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def named(model: Any, kind: str) -> dict[str, torch.nn.Parameter]:
    """Return peft's adapters by the name and place that they have here."""
    found = {}
    for name, weight in model.named_parameters():
        if "lora_" in name:
            found[name.removeprefix("base_model.model.").replace(".default.weight", "")] = weight
    return found


def ours_of(module: Any, kind: str, layer: int) -> dict[str, torch.Tensor]:
    """Return our parameters, or their gradients, cut as peft has them; worked out by hand."""
    weights = dict(module.named_parameters())
    config, found = module.config, {}
    q, kv, inner = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim, config.ffn_hidden_size
    places = {
        "llama3": {
            "attention.qkv": [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
            "attention.out": [("self_attn.o_proj", config.hidden_size)],
            "mlp.gate_up": [("mlp.gate_proj", inner), ("mlp.up_proj", inner)],
            "mlp.down": [("mlp.down_proj", config.hidden_size)],
        },
        "gpt2": {
            "attention.qkv": [("attn.c_attn", 3 * config.hidden_size)],
            "attention.out": [("attn.c_proj", config.hidden_size)],
            "mlp.up": [("mlp.c_fc", inner)],
            "mlp.down": [("mlp.c_proj", config.hidden_size)],
        },
    }[kind]
    prefix = {"llama3": "model.layers", "gpt2": "transformer.h"}[kind]
    for projection, modules in places.items():
        a, b = (weights[f"layers.{layer}.{projection}.lora_{which}"] for which in "ab")
        rows = b.split([size for _, size in modules])
        for i, (theirs, _) in enumerate(modules):
            found[f"{prefix}.{layer}.{theirs}.lora_A"] = a, slice(3 * i, 3 * i + 3)
            found[f"{prefix}.{layer}.{theirs}.lora_B"] = b, slice(sum(map(len, rows[:i])), sum(map(len, rows[: i + 1])))
    return found


@pytest.mark.parametrize("kind", TARGETS)
def test_logits_gradients_and_steps_are_those_of_peft(tmp_path, kind):
    theirs, base = saved(tmp_path, kind, TARGETS[kind])
    path, model = import_adapters(tmp_path / "theirs", tmp_path / "ours", base)
    assert (model.lora_rank, model.lora_alpha) == (3, 5)
    ours = our_module(path)
    assert_same_logits(ours, theirs)
    steps = [torch.optim.AdamW([p for p in each.parameters() if p.requires_grad], lr=0.01) for each in (ours, theirs)]
    for step in range(3):
        tokens = torch.randint(0, 53, (3, 13), generator=torch.Generator().manual_seed(step))
        loss = ours(tokens[:, :-1], tokens[:, 1:])
        wanted = theirs(input_ids=tokens, labels=tokens).loss
        torch.testing.assert_close(loss, wanted, **CLOSE)
        for optimizer, each in zip(steps, (loss, wanted), strict=True):
            optimizer.zero_grad()
            each.backward()
        adapters = named(theirs, kind)
        mine = {name: place for layer in range(2) for name, place in ours_of(ours, kind, layer).items()}
        assert mine.keys() == adapters.keys()
        for name, (parameter, rows) in mine.items():
            torch.testing.assert_close(parameter.grad[rows], adapters[name].grad, **CLOSE)
        for optimizer in steps:
            optimizer.step()
        for name, (parameter, rows) in mine.items():
            torch.testing.assert_close(parameter.detach()[rows], adapters[name].detach(), **CLOSE)
    assert all(parameter.grad is None for name, parameter in ours.named_parameters() if "lora_" not in name)


@pytest.mark.parametrize(
    ("kind", "targets", "more", "found"),
    [
        ("llama3", ["q_proj", "v_proj"], {"use_rslora": True}, "q v"),
        ("llama3", ["up_proj"], {}, "up"),
        ("gpt2", ["attn.c_proj", "mlp.c_fc"], {}, "out up"),
    ],
)
def test_some_targets(tmp_path, kind, targets, more, found):
    theirs, base = saved(tmp_path, kind, targets, **more)
    path, model = import_adapters(tmp_path / "theirs", tmp_path / "ours", base)
    assert model.lora_targets == found
    assert_same_logits(our_module(path), theirs)


def _edit(folder: Any, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_we_do_not_compute_is_refused(tmp_path):
    _, base = saved(tmp_path, "llama3", ["q_proj"])
    folder = tmp_path / "theirs"
    config, weights = (folder / "adapter_config.json").read_text(), load_file(folder / "adapter_model.safetensors")
    for changes, told in (
        ({"use_dora": True}, "use_dora is set: asks for DoRA, which megads does not have"),
        ({"bias": "all"}, "bias='all' is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is set"),
        ({"peft_type": "IA3"}, "peft_type is 'IA3', only LORA can be read"),
        ({"r": 4}, "has shape \\[3, 32\\], rank 4 of this base has \\[4, 32\\]"),
        ({"r": "4"}, "r is '4', expected an integer"),
        ({"lora_alpha": 0}, "lora_alpha is 0, expected a number above 0"),
    ):
        _edit(folder, **changes)
        with pytest.raises(CheckpointError, match=told):
            import_adapters(folder, tmp_path / "ours", base)
        (folder / "adapter_config.json").write_text(config)
    last = sorted(weights)[-1]
    for changed, told in (
        ({name: each for name, each in weights.items() if name != last}, "every layer must have the adapters"),
        ({**weights, "base_model.model.lm_head.lora_A.weight": torch.zeros(3, 32)}, "is no adapter of a linear layer"),
        ({"q.lora_A": torch.zeros(3, 32)}, "whose names begin with base_model.model."),
        ({name: each for name, each in weights.items() if ".layers.1." in name}, "holds no adapters"),
    ):
        save_file(changed, folder / "adapter_model.safetensors")
        with pytest.raises(CheckpointError, match=told):
            import_adapters(folder, tmp_path / "ours", base)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"adapter_model\.bin is not read; save it as safetensors"):
        import_adapters(folder, tmp_path / "ours", base)
    assert not (tmp_path / "ours").exists()


def test_adapters_are_no_base(tmp_path):
    _, base = saved(tmp_path, "llama3", ["q_proj"])
    said = {**base.manifest.about, "function": {"version": 1}, "source": "theirs"}
    base = replace(base, manifest=replace(base.manifest, about=said))
    path, _ = import_adapters(tmp_path / "theirs", tmp_path / "ours", base)
    assert "function" not in read_manifest(path).about  # of the base, whose losses are others
    with pytest.raises(CheckpointError, match="holds adapters itself"):
        import_adapters(tmp_path / "theirs", tmp_path / "more", ref(path))
