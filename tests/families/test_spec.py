"""The description of a model: its own rules. That it is the modules: tests/checkpoint/format/test_tensors.py."""

from __future__ import annotations

import pytest

from megads.families.decoder import spec_of
from megads.families.spec import Spec, Stack, local_size, norm, row, table
from tests.families.golden import draw_run


@pytest.mark.parametrize("number", range(20))
def test_steps_sum_up_to_the_parameters(number):
    model = draw_run(number).model
    spec = spec_of(model)
    parameters = list(spec.parameters())
    sizes = spec.step_sizes()
    assert len(sizes) == model.num_layers + 2
    assert sum(sizes) - local_size(spec.copied, 1) == sum(each.size for each in parameters)
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


def test_unequal_layers_are_numbered_through_all_stacks():
    small = (*norm("input_norm", 4, bias=True), *row("mlp.down", 4, 8, bias=False))
    large = (*small, *norm("cross_norm", 4, bias=False))
    stacks = (Stack(2, small), Stack(1, (*small, *norm("final_norm", 4, bias=False))), Stack(3, large))
    spec = Spec(stacks, (table("embedding", 10, 4, "embedding"),), tuple(norm("final_norm", 4, bias=False)), True)
    assert spec.num_layers == 6
    assert spec.step_sizes() == [40, 40, 40, 44, 44, 44, 44, 4 + 40]
    assert spec.step_sizes(2) == [20, 24, 24, 28, 28, 28, 28, 4 + 20]
    assert [each.name for each in spec.parameters() if each.step == 3][-1] == "layers.2.final_norm.weight"
    assert [each.step for each in spec.parameters() if each.name.endswith("cross_norm.weight")] == [4, 5, 6]
    assert spec.of("layers.5.cross_norm.weight").shape == (4,)
    for wrong in ("layers.1.cross_norm.weight", "layers.3.final_norm.weight", "layers.6.input_norm.weight"):
        with pytest.raises(KeyError):
            spec.of(wrong)
