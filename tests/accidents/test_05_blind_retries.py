"""Blind retries: exit code 143 was taken for the wall time with hours left, and errors of users were retried."""

from __future__ import annotations

from megads.monitor.run_state.attempts import read_attempts

FIRST_ONLY = """
if "worker" in sys.argv and os.environ.get("MEGADS_ATTEMPT") == "0":
    import megads.train.loop as loop
    step = loop.Loop.step
    def ended(self, batches):
        if self.training.progress.iteration == 3:
            os._exit(143)
        return step(self, batches)
    loop.Loop.step = ended
if "train" in sys.argv:
    import megads.launch.supervise.restart as restart
    restart.WAIT_S = 0.0
"""
EVERY = """
if "worker" in sys.argv:
    import megads.train.loop as loop
    def wrong(self, batches):
        from megads.errors import DataError
        raise DataError("corpus.bin: token 70000 is not in the vocabulary")
    loop.Loop.step = wrong
"""
SHORT = {"NLAYERS": "1", "TRAIN_ITERS": "5", "SAVE_INTERVAL": "2", "EVAL_INTERVAL": "0"}


def test_143_with_hours_left_is_not_the_wall_time_and_the_run_recovers(megads):
    settings = {**SHORT, "PYTHONPATH": megads.plant(FIRST_ONLY), "WALLTIME": "12:00:00"}
    done = megads.train("r", "--max-restarts", "3", **settings)
    assert done.returncode == 0, done.stderr
    first, second = read_attempts(megads.folder / "r")
    assert first.cause == "unknown"
    assert "left, so not by the wall time" in first.verdict
    assert (second.began, second.reached, second.cause, second.excluded) == (2, 5, "", ())


def test_what_a_person_has_to_change_is_not_retried(megads):
    done = megads.train("r", "--max-restarts", "3", **SHORT, PYTHONPATH=megads.plant(EVERY))
    assert done.returncode == 2
    assert "megads: not restarted: the same would happen again" in done.stderr
    (only,) = read_attempts(megads.folder / "r")
    assert only.cause == "user"
    assert "token 70000 is not in the vocabulary" in only.verdict
