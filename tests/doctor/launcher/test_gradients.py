import io
import sys
import tempfile
from pathlib import Path

import pytest

from megads.config.schema import RunConfig
from megads.doctor.launcher.gradients import check_gradients, tiny
from megads.errors import LaunchError
from megads.launch.request import TrainRequest


def test_a_folder_that_can_not_be_written_is_one_line(monkeypatch):
    def refuse(**where):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    ask = TrainRequest(None, (), {"MACHINE": "cpu"}, "host", Path(__file__).parents[3], sys.executable)
    with pytest.raises(LaunchError, match=r"cannot be written \(Permission denied\); run megads doctor in another"):
        check_gradients(ask, io.StringIO())


def test_gradients_are_read_off_adam_whatever_optimizer_is_set():
    # Other rules keep no moment that is the gradient.
    assert tiny(RunConfig())["optim.optimizer"] == "adamw"
