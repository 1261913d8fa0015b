"""Which container a process is in, by what runtimes leave in its environment."""

from __future__ import annotations

import pytest

from megads.cluster.container import NAME, Inside, container_of


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, None),
        ({"container": "", "APPTAINER_CONTAINER": ""}, None),
        ({NAME: "pyxis nvcr.io#nvidia/pytorch:1"}, Inside("pyxis", "nvcr.io#nvidia/pytorch:1")),
        ({"APPTAINER_CONTAINER": "/i/x.sif"}, Inside("apptainer", "/i/x.sif")),
        # Apptainer sets Singularity's names too.
        ({"SINGULARITY_CONTAINER": "/x.sif", "APPTAINER_CONTAINER": "/x.sif"}, Inside("apptainer", "/x.sif")),
        ({"container": "podman"}, Inside("podman")),
        ({"CH_RUNNING": "Weird Al Yankovic"}, Inside("charliecloud")),
        ({"SHIFTER_RUNTIME": "1", "SHIFTER_IMAGE": "me/llm:1"}, Inside("shifter", "me/llm:1")),
    ],
)
def test_the_container_is_found(env, expected):
    assert container_of(env) == expected
