"""When a run is not started again."""

from __future__ import annotations

from megads.launch.supervise.progress import reason_against
from megads.monitor.run_state.attempts import Attempt


def test_interrupted_ranks_are_not_started_again():
    attempt = Attempt(started=1.0, ended=2.0, reached=5, exit_code=130)
    assert reason_against([attempt], 3) == "interrupted"
