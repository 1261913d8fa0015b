"""The table of optimizers, and what of it is refused before a rank starts, with an alternative."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from megads.cli import main
from megads.config.derive import derive
from megads.config.optimizers import EVERYWHERE, OPTIMIZERS, Needs
from megads.config.schema import RunConfig
from megads.config.settings.optimizer import OptimizerName
from megads.config.sources.resolve import resolve, settings
from megads.errors import ConfigError, DependencyError, DeviceError, MegadsError
from megads.launch.preflight.packages import check_optimizer, is_older, version_of
from megads.plan.remarks import remarks
from tests.config.advice import check

ROOT = Path(__file__).parents[2]


def _run(env: dict[str, str], ranks: int = 1, machine: str = "generic") -> RunConfig:
    resolved = resolve("tiny", env={"TRAIN_ITERS": "10", "GALORE_RANK": "8", **env}, machine=machine)
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=500).run


def _refusal(env: dict[str, str], ranks: int = 1) -> str:
    with pytest.raises(ConfigError) as told:
        check(_run(env, ranks), ranks)
    return str(told.value)


def test_the_setting_knows_every_row():
    assert get_args(OptimizerName) == tuple(OPTIMIZERS)


def test_every_row_is_sound():
    variables = {field.json_schema_extra["env"] for _, field in settings()}
    for row in OPTIMIZERS.values():
        assert set(row.settings) <= variables, row.name
        other = OPTIMIZERS[row.instead]
        # The last resort of the last resort needs nothing.
        assert set(other.devices) == set(EVERYWHERE)
        assert not other.op
        assert row.devices or row.never
        assert row.is_whole or row.state, f"{row.name} keeps nothing that a checkpoint could have"
    assert not OPTIMIZERS["adamw"].needs


# Refusals

OP = (
    "pip install --no-build-isolation --no-binary deepspeed --force-reinstall --no-deps deepspeed, or use OPT={instead}"
)
ELSEWHERE = {
    "galoreadamw8bit": "OPT=galoreadamw8bit runs on nvidia devices, not on cpu; use OPT=galoreadamw",
    "galoreadamw8bitperlayer": "OPT=galoreadamw8bitperlayer runs on nvidia devices, not on cpu; use OPT=galoreadamw",
    "ds.adamw": "OPT=ds.adamw needs DeepSpeed's op cpu_adam, with which the installed DeepSpeed was not built: "
    f"DS_BUILD_CPU_ADAM=1 {OP.format(instead='adamw')}",
    "ds.fusedlamb": "OPT=ds.fusedlamb runs on nvidia and amd devices, not on cpu; use OPT=lamb",
    "ds.onebitlamb": "OPT=ds.onebitlamb cannot run here: its error feedback differs on every rank and cannot be "
    "saved so that another number of ranks resumes from it, and it replaces ZeRO's gradient reduction; use OPT=lamb",
    "apex.adam": "OPT=apex.adam runs on nvidia devices, not on cpu; use OPT=adamw",
    "apex.sgd": "OPT=apex.sgd runs on nvidia devices, not on cpu; use OPT=sgd",
}
"""What each optimizer that needs more than a CPU and Python packages says on a CPU."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_line_of_every_optimizer_on_a_cpu(name):
    env = {"OPT": name, **({"OFFLOAD_OPTIMIZER": "cpu"} if OPTIMIZERS[name].on_host else {})}

    def attempt() -> None:
        check(_run(env), 1)
        check_optimizer(name, "cpu", version=lambda module: "99", built=lambda op: False)

    if name not in ELSEWHERE:
        attempt()
        return
    with pytest.raises(MegadsError) as told:
        attempt()
    assert str(told.value) == ELSEWHERE[name]


def test_what_is_named_instead_runs():
    for name, line in ELSEWHERE.items():
        instead = line.rpartition("OPT=")[2]
        assert instead == OPTIMIZERS[name].instead
        check(_run({"OPT": instead}), 1)
        check_optimizer(instead, "cpu", version=lambda module: "99")


@pytest.mark.parametrize(
    ("name", "device", "line"),
    [
        ("muon", "cpu", "OPT=muon needs torch, which is not installed: pip install 'torch>=2.9', or use OPT=adamw"),
        (
            "sgdschedulefree",
            "nvidia",
            "OPT=sgdschedulefree needs schedulefree, which is not installed: pip install schedulefree, "
            "or use OPT=adamw",
        ),
        (
            "galoreadamw8bit",
            "nvidia",
            "OPT=galoreadamw8bit needs galore_torch, which is not installed: pip install galore-torch, "
            "or use OPT=galoreadamw",
        ),
        (
            "apex.sgd",
            "nvidia",
            "OPT=apex.sgd needs apex, which is not installed: build it from NVIDIA's apex repository with its C++ and "
            "CUDA extensions, or use OPT=sgd",
        ),
        (
            "ipex.lamb",
            "intel",
            "OPT=ipex.lamb needs intel_extension_for_pytorch, which is not installed: "
            "pip install intel-extension-for-pytorch (up to torch 2.8), or use OPT=lamb",
        ),
    ],
)
def test_a_missing_package(name, device, line):
    with pytest.raises(DependencyError) as told:
        check_optimizer(name, device, version=lambda module: None)
    assert str(told.value) == line


def test_a_package_that_is_too_old():
    with pytest.raises(DependencyError) as told:
        check_optimizer("adam8bit", "cpu", version=lambda module: "0.9.1")
    assert str(told.value) == (
        "OPT=adam8bit needs bitsandbytes 0.50 or newer, not 0.9.1: pip install -U bitsandbytes, or use OPT=adamw"
    )


@pytest.mark.parametrize(
    ("found", "wanted", "older"),
    [("2.9.0+cpu", "2.9", False), ("2.8.1", "2.9", True), ("2.13.0", "2.9", False), ("", "2.9", False)],
)
def test_versions_are_compared_as_numbers(found, wanted, older):
    assert is_older(found, Needs("torch", "", wanted)) is older


def test_the_version_of_what_is_installed():
    assert version_of("click")
    assert version_of("no_such_module") is None


def test_an_op_that_is_there_is_no_reason():
    check_optimizer("ds.adamw", "cpu", built=lambda op: op == "cpu_adam")
    check_optimizer("ds.fusedlamb", "nvidia", built=lambda op: op == "fused_lamb")
    with pytest.raises(DependencyError, match=r"DeepSpeed's op fused_lamb, .* DS_BUILD_FUSED_LAMB=1 pip .*OPT=lamb$"):
        check_optimizer("ds.fusedlamb", "nvidia", built=lambda op: False)
    with pytest.raises(DeviceError):
        check_optimizer("ds.fusedlamb", "intel", built=lambda op: True)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"OPT": "galore"}, "; did you mean galoreadamw?"),
        ({"OPT": "galore_adamw"}, "; did you mean galoreadamw?"),
        ({"OPT": "dshampooadamw"}, "; did you mean shampoo?"),
        ({"OPT": "muonclip"}, "; did you mean muon?"),
        ({"OPT": "ds.adam"}, "; did you mean ds.adamw?"),
        ({"OPT": "sophia"}, "; did you mean sophiag?"),
    ],
)
def test_names_that_are_near(env, words):
    with pytest.raises(ConfigError) as told:
        resolve("tiny", env=env, machine="generic")
    assert str(told.value).endswith(words)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"OPT": "apex.adam"}, ELSEWHERE["apex.adam"]),
        ({"OPT": "ds.onebitlamb"}, ELSEWHERE["ds.onebitlamb"]),
        ({"OPT": "ds.adamw"}, "OFFLOAD_OPTIMIZER=none; use OFFLOAD_OPTIMIZER=cpu or OPT=adamw"),
    ],
)
def test_the_command_refuses_in_one_line(env, words, tmp_path):
    env = {"MACHINE": "cpu", "MEGADS_DEVICE": "cpu", "DATA_CACHE_PATH": str(tmp_path), **env}
    done = CliRunner().invoke(main, ["train", "--preset", "tiny", "--dry-run"], env=env, catch_exceptions=False)
    assert done.exit_code == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("megads: ")
    assert last.endswith(words)


# Defaults


def test_a_schedule_free_optimizer_is_not_decayed_unless_asked():
    run = resolve("tiny", env={"OPT": "adamwschedulefree"}, machine="generic")
    assert run.run.optim.lr_decay_style == "constant"
    assert str(run.origins["optim.lr_decay_style"]) == "optimizer adamwschedulefree"
    for env in ({}, {"OPT": "sophiag"}):
        assert resolve("tiny", env=env, machine="generic").run.optim.lr_decay_style == "cosine"
    asked = {"OPT": "sgdschedulefree", "LR_DECAY_STYLE": "linear"}
    assert resolve("tiny", env=asked, machine="generic").run.optim.lr_decay_style == "linear"
    assert not [each for each in remarks(_run({"OPT": "sgdschedulefree"}), 1) if "decay" in each]
    (told,) = [each for each in remarks(_run(asked), 1) if "decay" in each]
    assert told == (
        "OPT=sgdschedulefree averages iterates instead of a decay, and LR_DECAY_STYLE=linear decays as well; "
        "use LR_DECAY_STYLE=constant"
    )


def test_whole_parameters_are_not_offloaded():
    env = {"OPT": "muon", "OFFLOAD_OPTIMIZER": "cpu"}
    assert any("OPT=muon steps whole parameters, and keeps its state on the device" in r for r in remarks(_run(env), 1))


# Memory
