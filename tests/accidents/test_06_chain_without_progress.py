"""Chains of jobs that spent their node-hours on the same steps: the third job refuses to start and says why."""

from __future__ import annotations

import socket

from megads.monitor.run_state.attempts import read_attempts

FAILS = """
if "worker" in sys.argv:
    import megads.train.loop as loop
    step = loop.Loop.step
    def fails(self, batches):
        if self.training.progress.iteration == 3:
            raise RuntimeError("planted")
        return step(self, batches)
    loop.Loop.step = fails
"""
SHORT = {"NLAYERS": "1", "TRAIN_ITERS": "6", "SAVE_INTERVAL": "2", "EVAL_INTERVAL": "0", "WALLTIME": "12:00:00"}


def test_the_third_job_that_would_repeat_the_same_steps_does_not_start(megads):
    path = megads.plant(FAILS)
    hosts = megads.folder / "hosts"
    hosts.write_text(f"{socket.gethostname()}\n")

    def job(number: int, **more: str):
        env = {"PBS_JOBID": f"{number}.pbs", "PBS_NODEFILE": str(hosts), "PYTHONPATH": path, "LAUNCH_WITH": "direct"}
        return megads.train("r", **SHORT, **env, **more)

    codes = [job(number).returncode for number in (1, 2, 3)]
    assert codes == [1, 1, 1]
    began = {each.job: each.began for each in read_attempts(megads.folder / "r")}
    assert began == {"1.pbs": 0, "2.pbs": 2, "3.pbs": 2}
    last = job(4)
    assert last.returncode == 2
    (line,) = [line for line in last.stderr.splitlines() if "saved nothing" in line]
    assert "the last 2 jobs (2.pbs, 3.pbs) saved nothing beyond iteration 2; the last one ended because of" in line
    assert "planted" in line
    assert job(5, CHAIN_FAILURES="0").returncode == 1
