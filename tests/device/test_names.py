"""Names of devices and backends, before torch is imported."""

from __future__ import annotations

import pytest

from megads.device.names import wanted_backend, wanted_device
from megads.errors import ConfigError


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"MEGADS_DEVICE": "tpu"}, "MEGADS_DEVICE=tpu: not one of nvidia, amd, intel, cpu"),
        (
            {"MEGADS_DEVICE": "cpu", "MEGADS_BACKEND": "smoke"},
            "MEGADS_BACKEND=smoke: not one of ccl, gloo, mpi, nccl, xccl",
        ),
        (
            {"MEGADS_DEVICE": "cpu", "MEGADS_BACKEND": "nccl"},
            "MEGADS_BACKEND=nccl: does not serve device cpu; use gloo or mpi or ccl",
        ),
    ],
)
def test_wrong_names_are_rejected(env, message):
    with pytest.raises(ConfigError, match=message):
        wanted_backend(env, wanted_device(env))


def test_nothing_is_wanted_unless_a_variable_says_so():
    assert wanted_device({}) == wanted_backend({}, "cpu") == ""
    assert wanted_device({"MEGADS_DEVICE": "amd"}) == "amd"
    assert wanted_backend({"MEGADS_BACKEND": "gloo"}, "nvidia") == "gloo"
