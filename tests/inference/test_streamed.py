"""A model whose layers are read when they run computes what a loaded one does, and keeps none of them."""

from __future__ import annotations

import pytest
import torch

from megads.inference.load import load_model
from megads.inference.runner import Runner
from megads.inference.streamed import ALONE, stream_model
from tests.parity.layouts import Layout


class _Weights:
    """Weights of a model that a seed draws; counts how often each is read."""

    def __init__(self, model):
        self.model, self.reads = model, []

    def read(self, name, cut):
        self.reads.append(name)
        generator = torch.Generator().manual_seed(len(name))
        return (torch.randn(cut.local_shape, generator=generator) / 4).numpy()


@pytest.mark.parametrize("kind", ["llama-tied", "gpt-untied", "qwen3", "olmo2"])
def test_layers_that_come_one_by_one_give_the_same_numbers(kind):
    model = Layout(kind).run().model
    rows = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]]
    weights = _Weights(model)
    with torch.inference_mode():
        loaded = load_model(_Weights(model), ALONE, torch.device("cpu"), torch.float32)
        whole = Runner(loaded, ALONE, context=8, num_slots=0)
        module = stream_model(weights)
        before = len(weights.reads)
        streamed = Runner(module, ALONE, context=8, num_slots=0)
        assert torch.equal(streamed.run(rows), whole.run(rows))
        assert torch.equal(streamed.run(rows), whole.run(rows))  # read again
    assert all(each.is_meta for each in module.layers.parameters())
    of_layers = [name for name in weights.reads if name.startswith("layers.")]
    assert not any(name.startswith("layers.") for name in weights.reads[:before])
    assert of_layers == 2 * of_layers[: len(of_layers) // 2]
