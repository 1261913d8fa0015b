"""How far a run is, to a manifest and back."""

from __future__ import annotations

import json

import pytest

from megads.checkpoint.resume.progress import Progress
from megads.errors import CheckpointError


def test_it_comes_back_from_json():
    progress = Progress(7, 56, 48, rollbacks=1, last_loss=2.5, recent_losses=(2.75, 2.5))
    assert Progress.read(json.loads(json.dumps(vars(progress)))) == progress


def test_fields_that_are_newer_than_the_checkpoint_have_their_defaults():
    assert Progress.read({"iteration": 3}) == Progress(3)


def test_fields_of_another_version_are_an_error():
    with pytest.raises(CheckpointError, match=r"progress cannot be read .*'colour'"):
        Progress.read({"iteration": 3, "colour": "blue"})
