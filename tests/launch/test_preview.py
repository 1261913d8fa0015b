"""``MACHINE=polaris --dry-run`` on a host that is not Polaris: nothing of this host counts."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from megads.cluster.machine import count_accelerators
from megads.config.sources.presets import read_machine
from megads.errors import ConfigError, DeviceError
from megads.launch.plan_run import prepare
from megads.launch.preview import preview
from megads.launch.request import TrainRequest

ROOT = Path(__file__).parents[2]
SITES = ["polaris", "aurora", "frontier", "perlmutter", "sophia", "sunspot", "sirius"]
pytestmark = pytest.mark.skipif(count_accelerators({}) > 0, reason="this host has accelerators")


def _ask(preset: str = "gpt-345M", **env: str) -> TrainRequest:
    return TrainRequest(preset, (), env, "laptop", ROOT, sys.executable, ("train", "--preset", preset, "--dry-run"))


@pytest.fixture
def no_look(monkeypatch):
    """Fail where this host's names, CPU, memory or disks are looked at."""

    def refuse(*args: object, **more: object) -> None:
        raise AssertionError("looked at this host")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "getfqdn", refuse)
    monkeypatch.setattr("megads.launch.plan_run.available_memory", refuse)
    monkeypatch.setattr("megads.launch.preflight.packages.version_of", refuse)


@pytest.mark.parametrize("machine", SITES)
def test_a_site_is_previewed_with_its_facts(machine, no_look):
    notes, text = preview(_ask(MACHINE=machine, NHOSTS="2"))
    facts = read_machine(machine, ROOT).facts
    assert notes[0].startswith(f"preview: this host is not {machine}; ")
    assert f"layout   {2 * facts.ranks_per_host} ranks on 2 hosts" in text
    assert "engine   native\n" in text
    assert facts.device_memory_gib > 30


def test_a_run_that_does_not_fit_is_a_note_of_the_preview(no_look):
    notes, _ = preview(_ask("7B", MACHINE="polaris"))
    (note,) = [each for each in notes if "machine polaris has 39.4 GiB per device" in each]
    assert "TP=4" in note
    roomy, _ = preview(_ask("7B", MACHINE="polaris", TP="4"))
    assert not [each for each in roomy if "a device of" in each]


def test_devices_of_the_machine_decide_not_this_hosts():
    with pytest.raises(DeviceError, match="ATTENTION=flash works on nvidia and amd devices, not on intel"):
        preview(_ask("7B", MACHINE="aurora", ATTENTION="flash"))
    with pytest.raises(DeviceError, match="OPT=galoreadamw8bit runs on nvidia devices, not on intel"):
        preview(_ask("7B", MACHINE="aurora", OPT="galoreadamw8bit"))
    assert preview(_ask("7B", MACHINE="polaris", OPT="galoreadamw8bit", ATTENTION="flash"))


@pytest.mark.parametrize(
    "env",
    [{"MACHINE": "cpu"}, {"MACHINE": "polaris", "MEGADS_DEVICE": "cpu"}, {"MACHINE": "polaris", "PBS_JOBID": "1"}],
)
def test_what_this_host_or_its_job_can_run_is_no_preview(env):
    assert preview(_ask("tiny", **env)) is None


def test_the_note_of_machine_cpu_names_what_this_host_accepts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {"NLAYERS": "1", "TRAIN_ITERS": "2"}
    assert prepare(_ask("tiny", **small, MACHINE="cpu")).resolved.notes == ()
    notes = prepare(_ask("gpt-345M", **small, MACHINE="cpu")).resolved.notes
    advice = next(each for each in notes if each.startswith("machine cpu: "))
    assert "MACHINE=generic MEGADS_DEVICE=cpu" in advice
    wide = prepare(_ask("gpt-345M", **small, MACHINE="generic", MEGADS_DEVICE="cpu", DTYPE="fp32", SEQ="128"))
    assert wide.run.model.hidden_size == 1024
    assert wide.available_bytes > 0


def test_a_run_whose_state_exceeds_the_devices_is_refused(monkeypatch):
    from megads.config.derive import derive
    from megads.config.sources.resolve import resolve
    from megads.plan.memory import check_device
    from tests.config.advice import attempt_from

    run = derive(resolve("7B", env={}, machine="polaris"), num_hosts=1, ranks_per_host=4, vocab_size=32_000).run
    with pytest.raises(
        ConfigError, match=r"machine polaris has 39.4 GiB per device, and each rank needs about .*FORCE=1"
    ):
        check_device(run, 4, "polaris", 39.4, attempt_from(run, 4))
    assert check_device(run, 4, "polaris", 60, attempt_from(run, 4)).startswith("machine polaris")
    assert check_device(run, 4, "polaris", 0, attempt_from(run, 4)) == ""
    assert check_device(run, 4, "polaris", 200, attempt_from(run, 4)) == ""


@pytest.mark.parametrize(("engine", "has_dictionary"), [("native", False), ("deepspeed", True)])
def test_deepspeeds_dictionary_is_shown_where_it_is_the_engine(engine, has_dictionary, no_look):
    _, text = preview(_ask(MACHINE="polaris", ENGINE=engine))
    assert ('"zero_optimization"' in text) is has_dictionary
    assert f"engine   {engine}\n" in text
