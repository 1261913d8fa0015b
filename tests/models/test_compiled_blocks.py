"""A layer of every family is one graph for torch's compiler, forward and backward, and gives what it gives without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from megads.comm.grid import Grid
from megads.comm.groups import Groups, make_groups
from megads.config.schema import ModelConfig
from megads.models import rope
from megads.parallel.documents import Documents, Lengths, find_documents
from megads.parallel.recompute import Recompute
from tests.fake_ranks import as_rank
from tests.models import shapes
from tests.models.noisy import ONE, build
from tests.ranks import groups_of, run_ranks

KINDS = {
    "llama": (shapes.LLAMA_GQA, 0),
    "gpt": (shapes.GPT, 0),
    "qwen3": (shapes.QWEN3, 0),
    "olmo2": (shapes.OLMO2, 0),
    "bert": (shapes.BERT_ORIGINAL, 0),
    "t5-encoder": (shapes.T5_V11, 0),
    "t5-decoder": (shapes.T5, shapes.T5.num_layers),
}


def rank_length(model: ModelConfig, groups: Groups, *, scattered: bool) -> int:
    whole = model.seq_length + model.decoder_seq_length
    return whole // groups.seq_size // (groups.tensor_size if scattered else 1)


def results(layer: Any, model: ModelConfig, *more: Any) -> list[Tensor]:
    """Return the layer's output of fixed numbers, and the gradients of its input and weights."""
    generator = torch.Generator().manual_seed(1)
    length = rank_length(model, layer.context.groups, scattered=layer.context.scatter_norms)
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


def layer_of(name: str, groups: Groups = ONE, **more: object) -> tuple[nn.Module, ModelConfig]:
    model, index = KINDS[name]
    model = model.model_copy(update={"seq_length": 16, "max_positions": 16})
    return build(model, groups, **more).layers[str(index)], model


@pytest.mark.parametrize("name", KINDS)
def test_a_layer_is_one_graph(name):
    is_one_graph(*layer_of(name))


def test_a_layer_whose_positions_start_again_is_one_graph():
    layer, model = layer_of("llama")
    is_one_graph(layer, model, Documents(positions=torch.arange(model.seq_length).expand(2, -1) % 5))


def test_a_layer_that_keeps_to_documents_is_one_graph():
    layer, model = layer_of("llama")
    tokens = torch.ones(2, model.seq_length, dtype=torch.int64)
    tokens[:, 9] = 0
    options = {"reset_positions": True, "reset_attention": True}
    is_one_graph(layer, model, find_documents(tokens, 0, ONE, **options))


def test_a_layer_with_padding_is_one_graph():
    layer, model = layer_of("bert")
    is_one_graph(layer, model, Documents(lengths=Lengths(torch.tensor([16, 5]), model.seq_length)))


def test_a_layer_whose_attention_is_recomputed_is_one_graph():
    is_one_graph(*layer_of("llama", recompute=Recompute("selective")))


def test_layers_share_one_graph():
    """Neither the number of a layer nor its weights are what a graph is recorded for."""
    model, _ = KINDS["gpt"]
    module = build(model)
    graphs: list[Any] = []

    def look(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    shared = torch.compile(type(module.layers["0"]).forward, backend=look, fullgraph=True)
    x = torch.randn(2, model.seq_length, model.hidden_size, dtype=torch.float64)
    for layer in module.layers.values():
        torch.testing.assert_close(shared(layer, x), layer(x))
    assert len(module.layers) == 2
    assert len(graphs) == 1


def _has_no_breaks(scatter: bool, tensor: int, seq: int) -> list[str]:
    """Return the families with breaks in a layer of a rank."""
    grid, found = Grid(tensor=tensor, seq=seq), []
    groups = make_groups(grid, 0)
    for name in KINDS:
        layer, model = layer_of(name, groups, scatter_norms=scatter)
        x = torch.randn(2, rank_length(model, groups, scattered=scatter), model.hidden_size, dtype=torch.float64)
        torch._dynamo.reset()
        with _disable_current_modes():  # what counts collectives; with one the compiler does nothing
            report = torch._dynamo.explain(layer)(x.requires_grad_())
        if (report.graph_count, report.graph_break_count) != (1, 0):
            found.append(f"{name}: {report.break_reasons}")
    return found


@pytest.mark.parametrize(("tensor", "seq", "scatter"), [(2, 1, False), (2, 1, True), (1, 2, False), (2, 2, True)])
def test_no_layer_of_a_rank_has_breaks(tensor, seq, scatter):
    assert as_rank(0, tensor * seq, _has_no_breaks, scatter, tensor, seq) == []


def _split_layer_is_one_graph(name: str, tensor: int, seq: int, scatter: bool) -> None:
    groups = groups_of(tensor=tensor, seq=seq)
    layer, model = layer_of(name, groups, scatter_norms=scatter)
    is_one_graph(layer, model)
    assert dist.get_world_size() == tensor * seq


@pytest.mark.parametrize(
    ("name", "tensor", "seq", "scatter"),
    [
        ("olmo2", 2, 1, False),
        ("gpt", 2, 1, True),
        ("t5-decoder", 1, 2, False),
    ],
)
def test_a_layer_of_split_weights_is_one_graph(name, tensor, seq, scatter):
    run_ranks(tensor * seq, _split_layer_is_one_graph, name, tensor, seq, scatter, timeout_s=300)


def test_what_breaks_a_graph_is_found(monkeypatch):
    def with_out(x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
        half, out = x.shape[-1] // 2, torch.empty_like(x)
        torch.mul(x[..., :half], cos[..., :half], out=out[..., :half])
        return out

    layer, model = layer_of("llama")
    monkeypatch.setattr(rope, "_rotate", with_out)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="out="):
        is_one_graph(layer, model)
