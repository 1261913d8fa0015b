"""The description of a model: its own rules. That it is the modules: tests/checkpoint/format/test_tensors.py."""

from __future__ import annotations

import pytest

from megads.families.decoder import spec_of
from megads.families.spec import local_size
from tests.families.golden import draw_run


@pytest.mark.parametrize("number", range(20))
def test_steps_sum_up_to_the_parameters(number):
    model = draw_run(number).model
    spec = spec_of(model)
    parameters = list(spec.parameters())
    first, layer, last = spec.step_sizes()
    copied = local_size(spec.copied, 1)
    assert first + model.num_layers * layer + last - copied == sum(each.size for each in parameters)
    assert [each.step for each in parameters] == sorted(each.step for each in parameters)
    assert {each.step for each in parameters} == set(range(model.num_layers + 2))


@pytest.mark.parametrize("number", range(20))
def test_every_parameter_is_found_by_its_full_name(number):
    spec = spec_of(draw_run(number).model)
    for each in spec.parameters():
        found = spec.of(each.name)
        assert (found.shape, found.kind, found.parts) == (each.shape, each.kind, each.parts)
        assert sum(each.parts) == (0 if each.dim is None else each.shape[each.dim])
    with pytest.raises(KeyError):
        spec.of("layers.0.attention.bias")


def test_a_tied_output_is_the_embedding_and_counts_where_it_is_copied():
    model = draw_run(0).model
    tied, untied = (spec_of(model.model_copy(update={"tied_embeddings": each})) for each in (True, False))
    assert [each.name for each in tied.tables] == ["embedding.weight"] == [each.name for each in tied.copied]
    assert [each.name for each in untied.tables] == ["embedding.weight", "head.weight"]
    assert untied.copied == ()
    assert tied.step_sizes(2) == untied.step_sizes(2)
