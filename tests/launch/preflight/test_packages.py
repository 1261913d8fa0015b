from importlib import metadata

import pytest

from megads.config import engine_choice
from megads.config.rules.advice import put
from megads.config.schema import ParallelConfig, RunConfig, TrainConfig
from megads.config.settings.engine import EngineConfig
from megads.config.sources.resolve import Resolved
from megads.errors import DependencyError
from megads.launch.preflight.packages import check_versions, numbers, settle_engine


def run(zero_stage=1, dtype="fp32", pipeline=1):
    return RunConfig(
        engine=EngineConfig(kind="deepspeed"),
        train=TrainConfig(dtype=dtype),
        parallel=ParallelConfig(zero_stage=zero_stage, pipeline=pipeline),
    )


def test_versions_compare_as_numbers():
    assert numbers("2.13.0+cpu") == (2, 13, 0)
    assert numbers("0.9.10") < numbers("0.19.3")


@pytest.mark.parametrize("pipeline", [1, 4])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("zero_stage", [0, 1])
def test_the_tested_set_is_accepted(zero_stage, dtype, pipeline):
    check_versions(run(zero_stage, dtype, pipeline))


def test_a_missing_package_names_the_way_to_get_it():
    with pytest.raises(DependencyError, match=r"no-such-package is not installed.*pip install -c envs/constraints.txt"):
        check_versions(run(), ("no-such-package",))


def without_deepspeed(package):
    if package == "deepspeed":
        raise metadata.PackageNotFoundError(package)
    return "9.9"


def test_deepspeed_is_needed_where_it_is_the_engine_only(monkeypatch):
    monkeypatch.setattr(metadata, "version", without_deepspeed)
    asked = run()
    with pytest.raises(DependencyError, match=r"deepspeed is not installed .* deepspeed, or use ENGINE=native$"):
        check_versions(asked)
    given = put(asked, {"deepspeed.steps_per_print": 5})
    with pytest.raises(DependencyError, match=r"or drop STEPS_PER_PRINT=5, which ENGINE=native does not do$"):
        check_versions(given)
    check_versions(put(run(), {"engine.kind": "native"}))


def test_liger_is_needed_where_it_is_asked_for(monkeypatch):
    def without_liger(package):
        if package == "liger-kernel":
            raise metadata.PackageNotFoundError(package)
        return "9.9"

    monkeypatch.setattr(metadata, "version", without_liger)
    check_versions(run())
    wanted = r"^liger-kernel is not installed .* envs/constraints.txt liger-kernel, or use KERNELS=compiled$"
    with pytest.raises(DependencyError, match=wanted):
        check_versions(put(run(), {"engine.kernels": "liger"}))


@pytest.mark.parametrize(
    ("change", "version", "kind"),
    [
        ({}, None, "native"),
        ({}, "0.19.8", "auto"),
        ({}, "", "auto"),  # installed by a path
        ({"engine.kind": "deepspeed"}, None, "deepspeed"),
        ({"deepspeed.comms_logger": True}, None, "auto"),  # check_versions says what is missing
    ],
)
def test_auto_takes_the_engine_that_is_installed(monkeypatch, change, version, kind):
    monkeypatch.setattr(engine_choice, "AUTO_TAKES_NATIVE", False)
    settled = settle_engine(Resolved(put(run(), {"engine.kind": "auto", **change}), {}, ()), lambda module: version)
    assert settled.run.engine.kind == kind
    assert settled.notes == (
        ("ENGINE=native, since deepspeed is not installed in this Python",) if kind == "native" else ()
    )


@pytest.mark.parametrize("version", ["0.16.0", "0.16.9", "0.18.5", "0.19.2"])
@pytest.mark.parametrize(
    "wrong", [run(1), run(3), run(0, "bf16"), run(0, "fp16"), run(1, pipeline=2), run(0, "bf16", pipeline=2)]
)
def test_versions_that_step_with_bad_gradients_are_refused_for_runs_that_meet_it(monkeypatch, version, wrong):
    monkeypatch.setattr(metadata, "version", lambda package: version)
    message = rf"deepspeed {version}: .*not finite.*\(right from 0.19.3 on\), or use ZERO_STAGE=0 DTYPE=fp32$"
    with pytest.raises(DependencyError, match=message):
        check_versions(wrong, ("deepspeed",))


@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("version", ["0.16.0", "0.16.9", "0.18.2", "0.18.5", "0.19.2", "0.19.3", "0.19.8"])
def test_versions_whose_pipeline_is_corrected_are_accepted_where_nothing_else_is_wrong(monkeypatch, version, pipeline):
    monkeypatch.setattr(metadata, "version", lambda package: version)
    check_versions(run(0, pipeline=pipeline), ("deepspeed",))


def test_versions_older_than_any_tried_are_refused(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda package: "0.15.4")
    with pytest.raises(DependencyError, match=r"deepspeed 0.15.4: it is older .*\(right from 0.16.0 on\)$"):
        check_versions(run(0), ("deepspeed",))
