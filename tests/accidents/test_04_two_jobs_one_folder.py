"""Two jobs wrote into one folder of checkpoints, on hosts that saw no lock of each other: 192 of 3,072 shards mixed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.shim import Rule, planted, shim_env

LOCKS_OF_ONE_HOST = [Rule("flock", "*/lock", "granted")]
HOLDER = (
    "import sys, pathlib; from megads.launch.claims import claim\n"
    "with claim(pathlib.Path(sys.argv[1]), '4711.pbs'): print('held', flush=True); sys.stdin.read()"
)


def test_the_second_job_is_refused_by_the_name_of_the_first_and_starts_when_it_has_ended(megads):
    folder = megads.folder / "r"
    env = {**os.environ, **shim_env(LOCKS_OF_ONE_HOST, host="nid0042"), "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], env=env, **pipes) as first:
        assert first.stdout.readline() == "held\n"
        settings = {"TRAIN_ITERS": "1", "EVAL_INTERVAL": "0", "PYTHONPATH": megads.plant(planted(LOCKS_OF_ONE_HOST))}
        refused = megads.train("r", **settings)
        assert refused.returncode == 2, refused.stderr
        (line,) = [each for each in refused.stderr.splitlines() if each.startswith("megads: run folder ")]
        assert "another run is using it (job 4711.pbs of " in line
        assert f" on nid0042, process {first.pid}, for " in line
        assert not (folder / "metrics.jsonl").exists()
        assert not (folder / "checkpoints").exists()
        first.communicate()
    done = megads.train("r", **settings)
    assert done.returncode == 0, done.stderr
