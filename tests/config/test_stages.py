"""Where a model is cut into pipeline stages."""

import itertools

import pytest

from megads.config.schema import ModelConfig, ParallelConfig, RunConfig
from megads.config.stages import (
    balanced_cuts,
    chunk_steps,
    schedule_of,
    stage_steps,
    step_parameters,
    virtual_stages,
)
from megads.errors import ConfigError


def run(layers, stages, split="layers", **model):
    return RunConfig(
        model=ModelConfig(num_layers=layers, **model),
        parallel=ParallelConfig(pipeline=stages, pipeline_split=split),
    )


def layers_of(layers, stages, split="layers", **model):
    """Return how many layers each stage has, after checking that the stages are the whole model."""
    steps = stage_steps(run(layers, stages, split, **model))
    layers += model.get("decoder_layers", 0)
    assert list(itertools.chain(*steps)) == list(range(layers + 2))
    assert all(steps)
    return [len([step for step in stage if 0 < step <= layers]) for stage in steps]


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (4, 1, [4]),
        (4, 2, [2, 2]),
        (4, 4, [1, 1, 1, 1]),
        (10, 4, [2, 3, 3, 2]),
        (7, 3, [2, 3, 2]),
        (32, 12, [2, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2]),
    ],
)
def test_layers_are_shared_evenly_and_the_ends_have_fewer(layers, stages, expected):
    found = layers_of(layers, stages)
    assert sorted(found) == sorted(expected)
    assert found[0] == min(found)
    assert found[-1] == min(found)


@pytest.mark.parametrize(
    ("layers", "stages", "expected"), [(6, 4, [1, 2, 2, 1]), (30, 4, [7, 8, 8, 7]), (4, 4, [0, 2, 2, 0])]
)
def test_ends_count_the_embedding_and_the_output_as_layers(layers, stages, expected):
    assert layers_of(layers, stages, "ends") == expected


def test_a_large_vocabulary_takes_layers_off_the_ends():
    sizes = {
        "hidden_size": 64,
        "ffn_hidden_size": 128,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 16,
        "vocab_multiple": 1,
    }
    small = layers_of(12, 4, "parameters", vocab_size=64, **sizes)
    large = layers_of(12, 4, "parameters", vocab_size=2000, **sizes)
    assert small == [3, 3, 3, 3]
    assert large[0] < 3
    assert large[-1] < 3


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("weights", [(3, 1, 4, 1, 5, 9, 2, 6), (0, 1, 1, 1, 1, 0), (100, 1, 1, 1, 1, 100), (1,) * 9])
def test_no_other_cut_has_a_smaller_largest_stage_or_is_more_even(weights, parts):
    def cost(cuts):
        loads = [sum(weights[a:b]) for a, b in itertools.pairwise(cuts)]
        return max(loads), sum(load * load for load in loads)

    every = [(0, *inner, len(weights)) for inner in itertools.combinations(range(1, len(weights)), parts - 1)]
    assert cost(balanced_cuts(weights, parts)) == min(map(cost, every))


def test_many_stages_share_many_layers():
    assert sorted(set(layers_of(2000, 500))) == [4]


@pytest.mark.parametrize(("split", "expected"), [("1,3", [1, 3]), ("4,0", [4, 0]), (" 0, 4", [0, 4])])
def test_a_list_is_taken_as_it_is(split, expected):
    assert layers_of(4, 2, split) == expected


@pytest.mark.parametrize(
    ("layers", "stages", "split", "message"),
    [
        (4, 8, "layers", r"PP=8 stages cannot share NLAYERS=4 layers; use PP=4 or less"),
        (4, 8, "1,1,1,1,0,0,0,0", r"PP=8 stages cannot share NLAYERS=4 layers; use PP=6 or less"),
        (4, 2, "2,3", r"PIPELINE_SPLIT=2,3 .* PP=2 stages, NLAYERS=4 in total; use e.g. PIPELINE_SPLIT=2,2"),
        (4, 3, "4", r"use e.g. PIPELINE_SPLIT=1,2,1"),
        (10, 4, "10", r"use e.g. PIPELINE_SPLIT=2,3,3,2"),
        (4, 6, "4", r"use e.g. PIPELINE_SPLIT=0,1,1,1,1,0"),
        (4, 3, "2,0,2", r"use e.g. PIPELINE_SPLIT=1,2,1"),
        (4, 2, "5,-1", r"use e.g. PIPELINE_SPLIT=2,2"),
        (4, 2, "even", r"PIPELINE_SPLIT='even' is not layers, ends, parameters or a list of layers such as 6,8,8,6"),
        (4, 2, "", r"PIPELINE_SPLIT='' is not layers"),
        (4, 2, "\u00b2,2", "PIPELINE_SPLIT='\u00b2,2' is not layers"),
        (4, 2, "\u0662,2", "PIPELINE_SPLIT='\u0662,2' is not layers"),
        (4, 2, ",".join(["1"] * 99), r"PIPELINE_SPLIT=(1,){28}1\.\.\. must list"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(layers, stages, split, message):
    with pytest.raises(ConfigError, match=message) as refused:
        stage_steps(run(layers, stages, split))
    _, advised, advice = str(refused.value).partition("use e.g. PIPELINE_SPLIT=")
    if advised:
        assert sum(layers_of(layers, stages, advice)) == layers


T5 = {"family": "t5", "decoder_layers": 6, "position_embedding": "learned"}


@pytest.mark.parametrize(
    ("stages", "rank", "expected"), [(4, 2, [6, 6, 3, 3]), (3, 1, [12, 3, 3]), (4, 3, [4, 4, 4, 6]), (1, 5, [18])]
)
def test_a_split_rank_is_where_the_decoder_begins(stages, rank, expected):
    assert layers_of(12, stages, f"rank:{rank}", **T5) == expected


@pytest.mark.parametrize(
    ("stages", "split", "model", "message"),
    [
        (
            5,
            "rank:1",
            T5,
            r"NLAYERS=12 layers over 1 and DECODER_LAYERS=6 over 4 stages of PP=5, .*=rank:2 or rank:3 or rank:4$",
        ),
        (2, "rank:2", T5, r"DECODER_LAYERS=6 over no stage of PP=2, not equally; use PIPELINE_SPLIT=rank:1$"),
        (2, "rank:0", T5, r"DECODER_LAYERS=6 over 2 stages of PP=2, not equally; use PIPELINE_SPLIT=rank:1$"),
        (2, "rank:1", {}, r"PIPELINE_SPLIT=rank:1 is a split rank, .* MODEL_FAMILY=llama has no encoder before it"),
        (2, "rank:x", T5, r"PIPELINE_SPLIT='rank:x' is not layers"),
    ],
)
def test_a_split_rank_that_does_not_fit(stages, split, model, message):
    with pytest.raises(ConfigError, match=message):
        stage_steps(run(12, stages, split, **model))


def _chunks(layers, stages, **parallel):
    """Return the layers of every chunk of every stage, which are the whole model in Megatron's order."""
    given = RunConfig(model=ModelConfig(num_layers=layers), parallel=ParallelConfig(pipeline=stages, **parallel))
    found = chunk_steps(given)
    virtual = [found[index % stages][index // stages] for index in range(stages * virtual_stages(given))]
    assert list(itertools.chain(*virtual)) == list(range(layers + 2))
    return [[len([step for step in steps if 0 < step <= layers]) for steps in chunks] for chunks in found]


@pytest.mark.parametrize(
    ("layers", "stages", "parallel", "expected"),
    [
        (8, 2, {"virtual_stages": 2}, [[2, 2], [2, 2]]),
        (8, 2, {"layers_per_virtual_stage": 1}, [[1, 1, 1, 1], [1, 1, 1, 1]]),
        (30, 4, {"virtual_stages": 2}, [[3, 4], [4, 4], [4, 4], [4, 3]]),
        (6, 2, {"virtual_stages": 2, "pipeline_split": "ends"}, [[1, 2], [2, 1]]),
        (6, 2, {"virtual_stages": 2, "pipeline_split": "0,3,3,0"}, [[0, 3], [3, 0]]),
        (8, 4, {"pipeline_split": "layers"}, [[2], [2], [2], [2]]),
    ],
)
def test_chunks_are_in_megatrons_order(layers, stages, parallel, expected):
    assert _chunks(layers, stages, **parallel) == expected


def test_one_range_of_steps_is_refused_where_stages_have_several():
    given = RunConfig(model=ModelConfig(num_layers=8), parallel=ParallelConfig(pipeline=2, virtual_stages=2))
    assert (virtual_stages(given), schedule_of(given)) == (2, "interleaved")
    with pytest.raises(ValueError, match="several chunks"):
        stage_steps(given)


@pytest.mark.parametrize(
    ("layers", "parallel", "message"),
    [
        (
            6,
            {"virtual_stages": 4},
            r"PP=2 x VIRTUAL_STAGES=4 = 8 virtual stages .* NLAYERS=6 layers; use VIRTUAL_STAGES=3 ",
        ),
        (
            *(8, {"virtual_stages": 2, "pipeline_split": "4,4"}),
            r"each of PP=2 x VIRTUAL_STAGES=2 = 4 virtual stages, NLAYERS=8 in total; use e.g. PIPELINE_SPLIT=2,2,2,2",
        ),
    ],
)
def test_chunks_that_do_not_fit(layers, parallel, message):
    with pytest.raises(ConfigError, match=message):
        _chunks(layers, 2, **parallel)


@pytest.mark.parametrize("kind", ["llama", "llama-gqa", "gpt", "mixed"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_the_parameters_of_a_step_are_those_it_is_built_with(kind, tensor):
    from megads.comm.grid import Grid
    from megads.comm.groups import Groups
    from megads.models.gpt import GPT
    from tests.models.shapes import KINDS

    model = KINDS[kind]
    built = [GPT(model, Groups(Grid(), 0), steps=range(step, step + 1)) for step in range(model.num_layers + 2)]
    counted = [sum(p.numel() // (tensor if p.shard else 1) for p in each.parameters()) for each in built]
    assert step_parameters(model, tensor) == counted
