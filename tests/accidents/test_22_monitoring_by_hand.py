"""Row 22: dashboards were put together by hand, and no single number showed what went wrong.

A run that failed, was resumed on other ranks and is done: one command says what happened, what it cost and where the
time went, from files that every run leaves, and a page that needs no network; a dashboard gets the same numbers.
"""

from __future__ import annotations

import json
import re

# Rank 1 is killed once the heartbeat of rank 0 has its last step: nothing else knows it.
FAILS = """
if "worker" in sys.argv and RANK == "1":
    import megads.train.loop as loop
    from megads.monitor.run_state.outcome import read_heartbeat
    step = loop.Loop.step
    def fails(self, batches):
        while self.training.progress.iteration == 5:
            beat = read_heartbeat(self.training.run_dir)
            if beat is not None and beat.iteration == 5:
                os.kill(os.getpid(), 9)
            time.sleep(0.05)
        step(self, batches)
    loop.Loop.step = fails
"""
SHORT = {"TRAIN_ITERS": "8", "SAVE_INTERVAL": "2", "EVAL_INTERVAL": "4"}


def test_one_command_says_what_a_campaign_did_with_its_time(megads):
    failed = megads.train("runs/a", **SHORT, NGPU_PER_HOST="2", PYTHONPATH=megads.plant(FAILS))
    assert failed.returncode not in (0, 75)
    done = megads.train("runs/a", **SHORT, NGPU_PER_HOST="1", PROMETHEUS_FILE="a.prom")
    assert done.returncode == 0, done.stderr
    shown = megads("report", "runs/a", "--price", "2")
    assert shown.returncode == 0, shown.stderr
    assert "jobs       2 jobs" in shown.stdout
    assert re.search(r"start: 2 ranks on 1 host$", shown.stdout, re.MULTILINE)
    assert re.search(r"failed.* after step 5: .*rank 1.*; 1 step repeated later$", shown.stdout, re.MULTILINE)
    assert re.search(r"start: 1 rank on 1 host from step 4; was 2 ranks on 1 host; layout", shown.stdout)
    assert "done after step 8" in shown.stdout

    found = json.loads(megads("report", "runs/a", "--json").stdout)
    assert (found["jobs"], found["lost_steps"], found["step"]) == (2, 1, 8)
    allocated = sum(link["ended"] - link["started"] for link in found["links"])
    assert abs(sum(found["host_seconds"].values()) - allocated) < 0.01
    assert {"training", "lost steps", "start-up", "saves", "validation"} <= set(found["host_seconds"])
    assert 0 < found["efficiency"] < 1
    page = (megads.folder / "runs/a/report.html").read_text()
    assert not re.search(r"(?:src|href)=|url\(|https?://", page)
    assert "Allocated host time" in page
    assert re.search(r'^megads_iteration\{run="[^"]+"\} 8\.0$', (megads.folder / "a.prom").read_text(), re.MULTILINE)
