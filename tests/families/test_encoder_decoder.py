"""The parameters of an encoder with a decoder, by hand."""

from __future__ import annotations

import pytest

from megads.families.decoder import spec_of
from tests.models.shapes import T5S


@pytest.mark.parametrize("kind", T5S)
def test_the_layers_of_both(kind):
    model = T5S[kind]
    spec = spec_of(model)
    names = {each.name for each in spec.parameters()}
    layers = [{each.name for each in layer} for layer in spec.layers()]
    assert len(layers) == model.num_layers + model.decoder_layers
    assert ["encoder_norm.weight" in layer for layer in layers].index(True) == model.num_layers - 1
    assert sum("encoder_norm.weight" in layer for layer in layers) == 1
    crossing = ["cross_attention.kv.weight" in layer for layer in layers]
    assert crossing == [False] * model.num_layers + [True] * model.decoder_layers
    assert ("positions.weight" in names) == (kind == "t5")
    assert ({"encoder_bias.weight", "decoder_bias.weight"} <= names) == (kind != "t5")
    assert ("output_bias.bias" in names) == (kind == "t5")
    assert ("head.weight" in names) == (kind == "t5-v1.1")


def test_megatrons_base_model_has_222_million_parameters():
    """12 + 12 layers of 768, inner width 3072, a vocabulary of 30592 rows, 512 positions."""
    base = T5S["t5"].model_copy(
        update={
            **{"num_layers": 12, "decoder_layers": 12, "hidden_size": 768, "num_heads": 12, "num_kv_heads": 12},
            **{"head_dim": 64, "ffn_hidden_size": 3072, "max_positions": 512, "vocab_size": 30592},
        }
    )
    width, inner = 768, 3072
    norm, square = 2 * width, width * width + width
    mlp = 2 * width * inner + inner + width
    encoder, decoder = 2 * norm + 4 * square + mlp, 3 * norm + 8 * square + mlp
    expected = (30592 + 512) * width + 12 * (encoder + decoder) + 2 * norm + 30592
    assert sum(each.size for each in spec_of(base).parameters()) == expected
    assert round(expected / 1e6) == 222
