"""How long the stages of a run wait: by formula, by the simulated clock with their work, and in words."""

from __future__ import annotations

import pytest

from megads.config.derive import derive
from megads.config.pipeline.actions import actions
from megads.config.pipeline.clock import Costs, simulate
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.config.stages import schedule_of, virtual_stages
from megads.plan import pipeline
from megads.plan.memory import stages
from megads.plan.pipeline import idle_of, pass_shares, pipeline_lines, shorter, uneven_idle, work_shares
from megads.plan.places.place import place_of
from megads.plan.time.step import step_time
from megads.plan.traffic import traffic

SIZES = {"NLAYERS": "16", "HIDDEN": "64", "HEADS": "4", "SEQ": "64", "GRAD_ACC_STEPS": "8", "VOCAB_SIZE": "1"}


def _run(**env: str) -> RunConfig:
    resolved = resolve(env={**SIZES, **env}, machine="generic")
    ranks = int(env.get("PP", "1"))
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=0).run


def test_idle_shares_of_the_schedules():
    assert idle_of(_run()) == 0
    assert idle_of(_run(PP="4", GRAD_ACC_STEPS="1")) == 3 / 4
    assert idle_of(_run(PP="4")) == pytest.approx(3 / 11)
    assert idle_of(_run(PP="4", VIRTUAL_STAGES="2")) == pytest.approx(3 / 19)
    waits = _run(PP="4", PIPELINE_SCHEDULE="zb-h1")
    assert 3 / 27 < idle_of(waits) < 3 / 11  # a third of 1F1B's idle time at best: attention has no weights


@pytest.mark.parametrize("schedule", [{}, {"VIRTUAL_STAGES": "2"}, {"PIPELINE_SCHEDULE": "zb-h1"}], ids=str)
@pytest.mark.parametrize("again", ["none", "selective", "full"])
def test_stages_of_equal_work_wait_as_the_formula_says(schedule, again):
    """The head of a vocabulary of one padded to 128 is a small part of a layer's work."""
    run = _run(PP="4", SEQ="2048", RECOMPUTE=again, **schedule)
    assert uneven_idle(run) == pytest.approx(idle_of(run), abs=0.01)


def test_stages_of_unequal_work_wait_longer():
    even, uneven = _run(PP="4"), _run(PP="4", PIPELINE_SPLIT="1,1,1,13")
    assert idle_of(even) == idle_of(uneven)
    assert uneven_idle(uneven) > 0.6


@pytest.mark.parametrize("schedule", [{}, {"VIRTUAL_STAGES": "4"}, {"PIPELINE_SCHEDULE": "zb-h1"}], ids=str)
@pytest.mark.parametrize("batches", ["40", "43"])
def test_many_micro_batches_continue_the_line(schedule, batches, monkeypatch):
    run = _run(PP="4", GRAD_ACC_STEPS=batches, VOCAB_MULTIPLE="4096", **schedule)
    costs = Costs(*pass_shares(run), work=work_shares(run))
    whole = simulate(actions(schedule_of(run), 4, virtual_stages(run), int(batches)), costs).idle_share()
    assert uneven_idle(run) == pytest.approx(whole, rel=1e-9)
    monkeypatch.setattr(pipeline, "MOST_CLOCKED", 1)
    assert uneven_idle(run) == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "16% with VIRTUAL_STAGES=2"),
        ({"VIRTUAL_STAGES": "2"}, ""),
        ({"PIPELINE_SCHEDULE": "zb-h1"}, ""),
        ({"ENGINE": "deepspeed"}, ""),
        ({"COMMS_LOGGER": "1"}, ""),
        ({"NLAYERS": "7"}, ""),
        ({"PIPELINE_SPLIT": "4,4,4,4"}, ""),
        ({"GRAD_ACC_STEPS": "100"}, ""),
        ({"GRAD_ACC_STEPS": "1"}, ""),
    ],
    ids=str,
)
def test_what_would_be_shorter(env, expected):
    assert shorter(_run(PP="4", **env)) == expected


def test_an_encoder_with_a_decoder():
    t5 = {"MODEL_FAMILY": "t5", "POSITION_EMBEDDING": "learned", "NLAYERS": "4", "DECODER_LAYERS": "4"}
    run = _run(PP="2", **t5)
    assert idle_of(run) == pytest.approx(1 / 9)
    assert 1 / 9 < uneven_idle(run) < 0.5


def test_a_drawing_of_a_pipeline_only():
    assert pipeline_lines(_run()) == []
    title, first, *_ = pipeline_lines(_run(PP="2", GRAD_ACC_STEPS="2"))
    assert title == "pipeline  1f1b, 2 micro-batches: 0-9 forward, a-j backward, . idle"
    assert first == "  stage 0  01..aa.bb"


def test_messages_and_idle_time_of_chunks():
    plain, chunks = _run(PP="4"), _run(PP="4", VIRTUAL_STAGES="2")

    def sends(run: RunConfig) -> list[int]:
        return [sum(each.count for each in traffic(run, 4, stage) if each.kind == "send") for stage in stages(run)]

    assert sends(plain) == [8, 16, 16, 8]
    assert sends(chunks) == [24, 32, 32, 24]
    for run in (plain, chunks):
        found = step_time(run, 4, place_of("h100"))
        idle = next(line.seconds for line in found.lines if line.name.startswith("idle"))
        repeated = sum(line.seconds for line in found.lines if not line.is_once)
        assert idle / repeated == pytest.approx(idle_of(run), rel=0.01)  # and messages of the first and last ones
