"""State and working memory of optimizers that step whole parameters."""

from __future__ import annotations

from megads.config.derive import derive
from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.families.decoder import spec_of
from megads.plan.memory import stages
from megads.plan.parts.whole_parameters import ADAM_FLOATS, AT_ONCE, WORK_BYTES, whole_state_bytes, whole_work_bytes


def _run(env: dict[str, str], ranks: int = 1) -> RunConfig:
    settings = {"TRAIN_ITERS": "9", "OPT": "muon", "SEQ": "128", **env}
    resolved = resolve("tiny", env=settings, machine="generic")
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=500).run


def _sizes(run: RunConfig, numbers: range) -> int:
    spec = spec_of(run.model)
    return sum(each.size for number in numbers for each in spec.layer_of(number) if each.kind == "matrix")


def test_layers_that_have_more_are_counted_as_they_are():
    """Looks at neighbours with their encoder, and the decoder of T5, besides the layers that most are."""
    muon = OPTIMIZERS["muon"]
    for env in ({"MODEL_FAMILY": "retro", "NLAYERS": "7"}, {"MODEL_FAMILY": "t5", "NLAYERS": "2"}):
        run = _run(env)
        (stage,) = stages(run)
        matrices = _sizes(run, range(stage.layers))
        tables = sum({each.name: each.size for each in spec_of(run.model).embedding}.values())
        assert whole_state_bytes(run, stage, 1) == round(4 * (muon.floats * matrices + ADAM_FLOATS * tables))
        assert whole_work_bytes(run, stage, 1) == WORK_BYTES * min(AT_ONCE, matrices + tables)
        plain = stage.layers * sum(each.size for each in spec_of(run.model).layer_of(0) if each.kind == "matrix")
        assert matrices > plain


def test_stages_hold_the_state_of_their_own_layers():
    run = _run({"MODEL_FAMILY": "retro", "NLAYERS": "8", "PP": "2"}, ranks=2)
    first = next(stages(run))
    assert _sizes(run, range(4)) < _sizes(run, range(4, 8))
    inside = OPTIMIZERS["muon"].floats * 4
    table = 4 * ADAM_FLOATS * sum(each.size for each in spec_of(run.model).embedding)
    assert whole_state_bytes(run, first, 1) == round(inside * _sizes(run, range(4)) + table)
