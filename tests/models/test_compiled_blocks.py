"""A layer of every family is one graph for torch's compiler, forward and backward, and gives what it gives without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megads.config.schema import ModelConfig
from megads.models import rope
from megads.parallel.documents import Documents
from tests.models import shapes
from tests.models.noisy import build

KINDS = {
    "llama": (shapes.LLAMA_GQA, 0),
    "gpt": (shapes.GPT, 0),
    "qwen3": (shapes.QWEN3, 0),
    "olmo2": (shapes.OLMO2, 0),
    "bert": (shapes.BERT_ORIGINAL, 0),
    "t5-encoder": (shapes.T5_V11, 0),
    "t5-decoder": (shapes.T5, shapes.T5.num_layers),
}


def results(layer: Any, model: ModelConfig, *more: Any) -> list[Tensor]:
    """Return the layer's output of fixed numbers, and the gradients of its input and weights."""
    generator = torch.Generator().manual_seed(1)
    length = model.seq_length + model.decoder_seq_length
    x = torch.randn(2, length, model.hidden_size, dtype=torch.float64, generator=generator).requires_grad_()
    out = layer(x, *more)
    mask = torch.randn(out.shape, dtype=torch.float64, generator=generator)
    weights = [weight for weight in layer.parameters() if weight.requires_grad]
    return [out.detach(), *torch.autograd.grad((out * mask).sum(), [x, *weights], allow_unused=True)]


def is_one_graph(layer: nn.Module, model: ModelConfig, *more: Any) -> None:
    torch._dynamo.reset()
    # Any graph break is an error.
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for ours, plain in zip(results(compiled, model, *more), results(layer, model, *more), strict=True):
        assert (ours is None) == (plain is None)
        if plain is not None:
            torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)


def layer_of(name: str) -> tuple[nn.Module, ModelConfig]:
    model, index = KINDS[name]
    return build(model).layers[str(index)], model


@pytest.mark.parametrize("name", KINDS)
def test_a_layer_is_one_graph(name):
    is_one_graph(*layer_of(name))


def test_a_layer_whose_positions_start_again_is_one_graph():
    layer, model = layer_of("llama")
    is_one_graph(layer, model, Documents(positions=torch.arange(model.seq_length).expand(2, -1) % 5))


def test_what_breaks_a_graph_is_found(monkeypatch):
    def with_out(x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
        half, out = x.shape[-1] // 2, torch.empty_like(x)
        torch.mul(x[..., :half], cos[..., :half], out=out[..., :half])
        return out

    layer, model = layer_of("llama")
    monkeypatch.setattr(rope, "_rotate", with_out)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="out="):
        is_one_graph(layer, model)
