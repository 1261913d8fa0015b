"""How a run ends: asked to stop, or after its time."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from megads.train.fault.stop import StopRequest
from tests.train.test_saving import OPENED, _as_before, loop_of, loop_on, saved  # noqa: F401 - the fixture


def test_without_a_step_nothing_is_saved_and_the_run_does_not_say_so(tmp_path):
    first = loop_of(tmp_path)
    first.training.engine.at_step[3] = lambda: (tmp_path / "stop").touch()
    assert first.run().message == "asked to stop; saved at iteration 3"
    # The next start went back to iteration 2; a checkpoint of 3 is there.
    command, once_saved = tmp_path / "command.txt", tmp_path / "command-once-saved.txt"
    command.write_text("CKPT_STEP=2 megads train\n")
    once_saved.write_text("megads train\n")
    loop = loop_of(tmp_path, **{"checkpoint.step": "2"})
    loop.training.progress = replace(loop.training.progress, iteration=2, consumed_samples=32)
    assert loop.run().message == "asked to stop; before the first step"
    assert (saved(tmp_path), command.read_text()) == ([2, 3], "CKPT_STEP=2 megads train\n")
    (tmp_path / "stop").unlink()
    loop.training.engine.at_step[3] = lambda: (tmp_path / "stop").touch()
    loop.training.engine.steps = 2
    assert loop.run().message == "asked to stop; saved at iteration 3"
    assert command.read_text() == "megads train\n"
    assert not once_saved.exists()


def test_a_run_of_a_given_duration_saves_and_stops(tmp_path):
    loop = loop_of(tmp_path)
    before = time.monotonic()
    stop = StopRequest(tmp_path, loop.training.groups, loop.training.device, in_place=False, exit_duration_min=0.001)
    assert before + 0.06 <= stop.exit_at <= time.monotonic() + 0.06
    stop.exit_at += 1000.0  # steps on a busy machine take long
    loop = loop_on(loop.training, stop, OPENED[-1])
    loop.training.engine.at_step[3] = lambda: setattr(stop, "exit_at", time.monotonic())
    outcome = loop.run()
    assert (outcome.exit_code, outcome.iteration) == (75, 3)
    assert outcome.message == "EXIT_DURATION_IN_MINS=0.001; saved at iteration 3"
    assert json.loads((tmp_path / "checkpoints/iter_0000003/manifest.json").read_text())["iteration"] == 3
