"""The FLOP formula against a count of the operations that run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig, RunConfig
from megads.config.settings.engine import RecomputeConfig
from megads.data.samples.retro.rows import RetroRow
from megads.models.bert import PairLabels
from megads.models.build import build_model
from megads.parallel.recompute import Recompute
from megads.plan.flops import flops_per_token, products
from megads.train.profile.flops import counted
from tests.models.shapes import BERTS, GPT, LLAMA, LLAMA_GQA, MIXED, RETROS, T5S, make_run

MODELS: dict[str, ModelConfig] = {
    "llama": LLAMA,
    "llama-gqa": LLAMA_GQA,
    "llama-mqa": LLAMA.model_copy(update={"num_kv_heads": 1}),
    "llama-wide-heads": LLAMA.model_copy(update={"head_dim": 6, "num_layers": 3}),
    "llama-gelu": LLAMA.model_copy(update={"activation": "gelu"}),
    "llama-tied": LLAMA.model_copy(update={"tied_embeddings": True, "vocab_multiple": 64}),
    "gpt": GPT,
    "gpt-untied-swiglu": GPT.model_copy(update={"tied_embeddings": False, "activation": "swiglu"}),
    "gpt-one-layer": GPT.model_copy(update={"num_layers": 1, "seq_length": 7, "hidden_dropout": 0.1}),
    "mixed": MIXED,
    **{kind: model.model_copy(update={"seq_length": 8}) for kind, model in BERTS.items()},
    **T5S,
    **RETROS,
    "retro-shut": RETROS["retro"].model_copy(update={"retro_attention_gate": 0.0}),
    "bert-classes": BERTS["bert"].model_copy(update={"num_classes": 3}),
    "gpt-classes": GPT.model_copy(update={"num_classes": 3}),
    "llama-choices": LLAMA.model_copy(update={"num_classes": 1}),
}
AGAIN: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"granularity": "selective"},
    "uniform": {"granularity": "full", "num_layers": 2},
    "block": {"granularity": "full", "method": "block", "num_layers": 1},
}


def _model(run: RunConfig) -> Any:
    given = run.recompute
    return build_model(run, Groups(Grid(), 0), Recompute(given.granularity, given.method, given.num_layers))


def _labels(model: ModelConfig, tokens: torch.Tensor) -> Any:
    if model.num_classes:
        return tokens[:, 0]
    has_pairs = model.family == "bert" and model.binary_head
    return PairLabels(tokens, tokens[:, 0]) if has_pairs else tokens


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("kind", MODELS)
def test_formula_equals_the_operations_that_run(kind, again):
    run = make_run(MODELS[kind]).model_copy(update={"recompute": RecomputeConfig(**AGAIN[again])})
    more = run.model.decoder_seq_length
    if run.model.family == "retro":
        more = RetroRow.of(run.model).width - run.model.seq_length - 1
    tokens, said = (torch.zeros(2, n, dtype=torch.int64) for n in (run.model.seq_length, more))
    module = _model(run)
    # The plain kernel, which computes the whole square and whose products the counter knows, and pieces
    # that are computed again whole.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), set_checkpoint_early_stop(False):
        labels = said if run.model.decoder_layers else _labels(run.model, tokens)
        module(torch.cat([tokens, said], dim=1), labels).backward()
    assert counter.get_total_flops() == flops_per_token(run).hardware * tokens.numel()
    assert (again == "none") == (flops_per_token(run).recomputed == 0)


@pytest.mark.parametrize("again", ["uniform", "selective"])
def test_torchs_checkpoint_leaves_out_the_last_product(again):
    """What stands in docs/numbers.md: HFU counts it all the same."""
    run = make_run(LLAMA).model_copy(update={"recompute": RecomputeConfig(**AGAIN[again])})
    tokens = torch.zeros(2, LLAMA.seq_length, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        _model(run)(tokens, tokens).backward()
    parts = products(LLAMA, LLAMA.seq_length)
    # One piece of both layers ends with the second one's down projection, a core with scores times values.
    last = LLAMA.hidden_size * LLAMA.ffn_hidden_size if again == "uniform" else 2 * parts.core // 2
    assert flops_per_token(run).hardware * tokens.numel() - counter.get_total_flops() == 2 * last * tokens.numel()


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("kind", ["llama-gqa", "gpt"])
def test_our_own_count_knows_the_kernels_that_training_runs(kind, again):
    run = make_run(MODELS[kind]).model_copy(update={"recompute": RecomputeConfig(**AGAIN[again])})
    tokens = torch.zeros(2, run.model.seq_length, dtype=torch.int64)
    module = _model(run)
    with counted([module], lambda: None) as found, set_checkpoint_early_stop(False):
        module(tokens, tokens).backward()
    flops = flops_per_token(run)
    assert (found.forward, found.backward) == (flops.model / 3 * tokens.numel(), flops.model / 3 * 2 * tokens.numel())
    assert found.again == flops.recomputed * tokens.numel()
    assert found.modules[""].calls == 1
    if again != "selective":  # of which there is no module
        assert found.modules[""].flops + (found.again if again != "none" else 0) == found.forward + found.again
    inner = found.modules["layers.0.mlp"]
    assert inner.calls == (2 if again in ("uniform", "block") else 1)
    parts = products(run.model, run.model.seq_length)
    assert inner.flops == 2 * parts.mlp * tokens.numel() * inner.calls
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())


@pytest.mark.parametrize("again", ["none", "uniform"])
@pytest.mark.parametrize("kind", ["llama-gqa", "gpt"])
def test_our_own_count_changes_no_bit_of_a_gradient(kind, again):
    """An operator with a kernel of its own is not taken apart, which would round otherwise (SiLU's gradient)."""
    wide = {
        "hidden_size": 64,
        "num_heads": 4,
        "num_kv_heads": 4,
        "ffn_hidden_size": 128,
        "seq_length": 32,
        "max_positions": 32,
    }
    run = make_run(MODELS[kind].model_copy(update=wide)).model_copy(
        update={"recompute": RecomputeConfig(**AGAIN[again])}
    )
    tokens = torch.arange(2 * 32).view(2, 32) % run.model.vocab_size
    module = _model(run)

    def gradients() -> list[torch.Tensor]:
        module.zero_grad(set_to_none=True)
        module(tokens, tokens).backward()
        return [weight.grad for weight in module.parameters()]

    plain = gradients()
    with counted([module], lambda: None):
        looked = gradients()
    assert all(torch.equal(*each) for each in zip(plain, looked, strict=True))
