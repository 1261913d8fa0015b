"""Schedules and virtual stages that cannot be are refused with one line, and every change that it names works."""

from __future__ import annotations

import pytest

from megads.config.derive import attempts, derive
from megads.config.rules.checks import check
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.config.stages import schedule_of, virtual_stages
from megads.errors import ConfigError
from tests.config.advice import ways

MODEL = {"NLAYERS": "12", "HIDDEN": "64", "HEADS": "8", "FFN_HIDDEN_SIZE": "192", "SEQ": "64", "GRAD_ACC_STEPS": "8"}
T5 = {"MODEL_FAMILY": "t5", "POSITION_EMBEDDING": "learned", "NLAYERS": "4", "DECODER_LAYERS": "4"}

# (ranks, settings, beginning of the line)
REFUSED = [
    (
        *(4, {"VIRTUAL_STAGES": "2"}),
        "VIRTUAL_STAGES=2: chunks of a pipeline's stages, and PP=1; use VIRTUAL_STAGES=0 or PP=2",
    ),
    (
        *(4, {"NUM_LAYERS_PER_VIRTUAL_STAGE": "3"}),
        "NUM_LAYERS_PER_VIRTUAL_STAGE=3: chunks of a pipeline's stages, and PP=1; "
        "use NUM_LAYERS_PER_VIRTUAL_STAGE=0 or PP=2",
    ),
    (
        *(4, {"PP": "4", "VIRTUAL_STAGES": "4"}),
        "PP=4 x VIRTUAL_STAGES=4 = 16 virtual stages cannot share NLAYERS=12 layers; use VIRTUAL_STAGES=3, ",
    ),
    (
        *(4, {"PP": "4", "NUM_LAYERS_PER_VIRTUAL_STAGE": "2"}),
        "NUM_LAYERS_PER_VIRTUAL_STAGE=2 layers, and a stage has NLAYERS / PP = 12 / 4 = 3; "
        "use NUM_LAYERS_PER_VIRTUAL_STAGE=",
    ),
    (
        *(4, {"PP": "4", "NLAYERS": "10", "NUM_LAYERS_PER_VIRTUAL_STAGE": "1"}),
        "NUM_LAYERS_PER_VIRTUAL_STAGE=1 layers, and NLAYERS / PP = 10 / 4 is not a whole number; use NLAYERS=",
    ),
    (
        *(2, {"PP": "2", "VIRTUAL_STAGES": "2", "NUM_LAYERS_PER_VIRTUAL_STAGE": "2"}),
        "VIRTUAL_STAGES=2 and NUM_LAYERS_PER_VIRTUAL_STAGE=2 contradict each other: NLAYERS=12 / (PP=2 x 2) = 3; use ",
    ),
    (2, {"PIPELINE_SCHEDULE": "zb-h1"}, "PIPELINE_SCHEDULE=zb-h1 is an order of a pipeline's stages, and PP=1; use "),
    (
        *(2, {"PP": "2", "PIPELINE_SCHEDULE": "interleaved"}),
        "PIPELINE_SCHEDULE=interleaved is for virtual stages, and VIRTUAL_STAGES=1; use VIRTUAL_STAGES=2 or ",
    ),
    (
        *(2, {"PP": "2", "VIRTUAL_STAGES": "2", "PIPELINE_SCHEDULE": "zb-h1"}),
        "PIPELINE_SCHEDULE=zb-h1 has one chunk of layers per stage, and VIRTUAL_STAGES=2; use ",
    ),
    (
        *(2, {"PP": "2", "VIRTUAL_STAGES": "2", "PIPELINE_SCHEDULE": "1f1b"}),
        "PIPELINE_SCHEDULE=1f1b has one chunk of layers per stage, and VIRTUAL_STAGES=2; use ",
    ),
    (
        *(2, {"PP": "2", "VIRTUAL_STAGES": "2", "ENGINE": "deepspeed"}),
        "ENGINE=deepspeed does not do VIRTUAL_STAGES=2 (pipeline schedules besides 1F1B); use ENGINE=native or ",
    ),
    (
        *(2, {"PP": "2", "PIPELINE_SCHEDULE": "zb-h1", "ENGINE": "deepspeed"}),
        "ENGINE=deepspeed does not do PIPELINE_SCHEDULE=zb-h1 (pipeline schedules besides 1F1B); use ENGINE=native or ",
    ),
    (
        *(2, {"PP": "2", "VIRTUAL_STAGES": "2", "PIPELINE_SPLIT": "6,6"}),
        "PIPELINE_SPLIT=6,6 must list the layers of each of PP=2 x VIRTUAL_STAGES=2 = 4 virtual stages, "
        "NLAYERS=12 in total; use VIRTUAL_STAGES=1, PIPELINE_SPLIT=3,3,3,3 or ",
    ),
    (
        *(2, {**T5, "PP": "2", "VIRTUAL_STAGES": "2", "PIPELINE_SPLIT": "rank:1"}),
        "PIPELINE_SPLIT=rank:1 is a split rank, whose stages have one chunk each, and VIRTUAL_STAGES=2; use ",
    ),
]


def _prepare(env: dict[str, str], ranks: int) -> RunConfig:
    resolved = resolve(env={**MODEL, **env}, machine="generic")
    run = derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=1000).run

    def ranks_of(run: RunConfig) -> tuple[int, int]:
        return 1, run.launch.ranks_per_host or ranks

    check(run, ranks, attempts(resolved, ranks_of, 1000))
    return run


@pytest.mark.parametrize(("ranks", "env", "told"), REFUSED, ids=lambda value: str(value)[:70])
def test_what_cannot_be_is_refused_and_each_change_it_names_works(ranks, env, told):
    with pytest.raises(ConfigError) as caught:
        _prepare(env, ranks)
    message = str(caught.value)
    assert message.startswith(told)
    assert "\n" not in message
    assert len(message) < 400
    named = ways(message)
    assert named
    for way in named:
        _prepare({**env, **way.variables}, ranks)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"PP": "4", "VIRTUAL_STAGES": "3"}, ("interleaved", 3)),
        ({"PP": "2", "NUM_LAYERS_PER_VIRTUAL_STAGE": "2"}, ("interleaved", 3)),
        ({"PP": "2", "NUM_LAYERS_PER_VIRTUAL_STAGE": "6"}, ("1f1b", 1)),
        ({"PP": "2", "NUM_LAYERS_PER_VIRTUAL_STAGE": "2", "VIRTUAL_STAGES": "3"}, ("interleaved", 3)),
        ({"PP": "4", "PIPELINE_SCHEDULE": "zb-h1"}, ("zb-h1", 1)),
        ({"PP": "4", "PIPELINE_SCHEDULE": "1f1b"}, ("1f1b", 1)),
        # Chunks need not be equal, micro-batches no multiple of the stages and fewer than them.
        ({"PP": "4", "VIRTUAL_STAGES": "2", "GRAD_ACC_STEPS": "7"}, ("interleaved", 2)),
        ({"PP": "4", "VIRTUAL_STAGES": "2", "GRAD_ACC_STEPS": "1"}, ("interleaved", 2)),
        ({"PP": "2", "VIRTUAL_STAGES": "2", "PIPELINE_SPLIT": "0,6,6,0"}, ("interleaved", 2)),
        ({"PP": "2", "ZERO_STAGE": "3", "ENGINE": "native"}, ("1f1b", 1)),
        ({"PP": "1", "VIRTUAL_STAGES": "1"}, ("1f1b", 1)),
    ],
    ids=str,
)
def test_what_is_accepted(env, expected):
    run = _prepare(env, 4)
    assert (schedule_of(run), virtual_stages(run)) == expected


def test_an_option_overrides_a_variable_that_says_the_same_otherwise():
    env = {**MODEL, "PP": "2", "VIRTUAL_STAGES": "2"}
    flags = [("--num-layers-per-virtual-pipeline-stage", "3")]
    found = resolve(env=env, flags=flags, machine="generic")
    assert (found.run.parallel.virtual_stages, found.run.parallel.layers_per_virtual_stage) == (0, 3)
    assert any("VIRTUAL_STAGES=2 (env VIRTUAL_STAGES) is overridden by" in note for note in found.notes)
