"""The parameters of Retro: which layers look at neighbours, and where the encoder is."""

from __future__ import annotations

import pytest

from megads.families.decoder import spec_of
from megads.families.retro import looks
from megads.plan.memory import count_parameters
from tests.models.shapes import RETRO

CROSS = "cross_norm cross_attention.q cross_attention.kv cross_attention.out"


def _modules(layer, prefix=""):
    names = (each.name.removeprefix(prefix) for each in layer if each.name.startswith(prefix))
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names if not name.startswith("retriever.")))


@pytest.mark.parametrize(
    ("layers", "looking"),
    [(6, [6]), (9, [6, 9]), (12, [6, 9, 12]), (15, [6, 9, 12, 15]), (16, [9, 12, 15]), (24, [9, 12, 15, 18, 21, 24])],
)
def test_the_layers_that_look_at_neighbours_are_those_of_megatron(layers, looking):
    assert [number for number in range(1, layers + 1) if looks(number - 1, layers)] == looking
    spec = spec_of(RETRO.model_copy(update={"num_layers": layers}))
    assert spec.num_layers == layers
    crossing = [n for n, layer in enumerate(spec.layers(), 1) if any(e.name == "cross_norm.weight" for e in layer)]
    assert crossing == looking
    owners = [n for n, layer in enumerate(spec.layers(), 1) if any(e.name.startswith("retriever.") for e in layer)]
    assert owners == looking[:1]


def test_the_first_layer_of_the_encoder_looks_at_the_chunk_and_the_others_are_plain():
    spec = spec_of(RETRO.model_copy(update={"retro_encoder_layers": 3}))
    plain, first = spec.layer_of(0), spec.layer_of(5)
    usual = _modules(plain)
    assert _modules(first) == [*usual, *CROSS.split()]
    assert _modules(first, "retriever.0.") == [*usual, *CROSS.split()]
    assert _modules(first, "retriever.1.") == _modules(first, "retriever.2.") == usual
    assert not [each for each in first if each.name.startswith("retriever.3.")]
    by_name = {each.name: each for each in first}
    for name in ("attention.qkv.weight", "cross_attention.kv.bias", "mlp.down.weight"):
        ours, theirs = by_name[name], by_name[f"retriever.0.{name}"]
        assert (ours.shape, ours.kind, ours.dim, ours.parts) == (theirs.shape, theirs.kind, theirs.dim, theirs.parts)
    assert spec.of("layers.5.retriever.2.mlp.up.weight").shape == (48, 32)


def test_the_count_is_that_of_the_gpt_and_its_parts():
    """Width 32, MLP of 48; of 7 layers one looks at neighbours, and the encoder has two."""
    gpt = count_parameters(RETRO.model_copy(update={"family": "gpt"}))
    layer = 2 * (2 * 32) + (32 * 96 + 96) + (32 * 32 + 32) + (32 * 48 + 48) + (48 * 32 + 32)
    cross = 2 * 32 + (32 * 32 + 32) + (32 * 64 + 64) + (32 * 32 + 32)
    assert RETRO.num_layers == 7
    assert count_parameters(RETRO) == gpt + cross + (2 * layer + cross)
