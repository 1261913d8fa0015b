"""``megads train``, as users type it, on ranks with simulated devices."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Command
from tests.simgpu.device import have_device

DEVICES = """
if "worker" in sys.argv:
    from tests.simgpu.device import start
    start(devices=2)
"""
"""To plant: every rank has a device; the command that starts ranks has none, as on a login node."""


@pytest.fixture
def megads(tmp_path, tmp_path_factory):
    return Command(tmp_path, tmp_path_factory.mktemp("cache"))


@pytest.mark.dist
def test_the_command_trains_on_devices_as_on_cpus(megads):
    have_device()
    settings = {"TRAIN_ITERS": "4", "NGPU_PER_HOST": "2", "TP": "2", "SAVE_INTERVAL": "2", "DTYPE": "bf16"}
    done = megads.train("there", **settings)
    assert done.returncode == 0, done.stderr
    done = megads.train("here", **settings, PYTHONPATH=megads.plant(DEVICES))
    assert done.returncode == 0, done.stderr
    assert "simulated device" in done.stderr
    assert megads.losses("here") == megads.losses("there") != []
    assert all(row.get("memory_bytes", 1) for row in megads.rows("here"))
