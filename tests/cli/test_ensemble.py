"""``megads ensemble``: what is asked for is checked before anything starts; four small runs, one of which fails."""

from __future__ import annotations

import json
import time

import pytest

from tests.e2e.conftest import SLOW, cache, megads

__all__ = ["cache", "megads"]

SHORT = {"TRAIN_ITERS": "3", "EVAL_INTERVAL": "0"}
FAILS = """
if os.environ.get("SEED") == "2" and "worker" in sys.argv:
    import megads.train.loop as loop
    def fails(self, batches):
        raise RuntimeError("planted")
    loop.Loop.step = fails
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "pass a YAML file, or --vary NAME=VALUE,VALUE"),
        (("--vary", "LRR=1,2"), "--vary: LRR is not a setting; did you mean LR?"),
        (("--vary", "LR=1e-3,1e-x"), "LR=1e-x: "),
        (("--vary", "LR=1e-3", "--ranks", "999"), "LR=1e-3: ranks: 999, and a host takes"),
        (("--vary", "LR=1e-3", "--ranks", "1", "--hosts", "1"), "--hosts and --ranks: use one of them"),
        (("--vary", "LR=1e-4", "--preset", "7B"), "stand behind --, at the end: megads ensemble ... -- --preset 7B"),
        (("--varry", "LR=1e-4"), "--varry is no option of megads ensemble; did you mean --vary?"),
        (("gone.yaml",), "gone.yaml: cannot be read"),
        (("gone", "--vary", "LR=1"), "gone: not found; pass a YAML file"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_started(megads, words, message):
    done = megads("ensemble", *words, **SHORT)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("megads: ")
    assert message in line
    assert not (megads.folder / "runs").exists()


def test_a_dry_run_lists_the_runs_and_starts_none(megads):
    (megads.folder / "sizes.yaml").write_text("members: [{name: a, settings: {NLAYERS: 1}}, {name: b, ranks: 1}]\n")
    done = megads("ensemble", "sizes.yaml", "--dry-run", "--", "--preset", "7B", **SHORT)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head == "2 runs in runs/sizes, 1 at the same time on 1 host"
    assert [line.split() for line in lines] == [["a", "1", "host"], ["b", "1", "rank"]]
    assert not (megads.folder / "runs").exists()


def test_one_run_fails_the_others_are_done_and_the_same_command_resumes(megads):
    """The one that failed continues when its reason is gone; those that are done are not trained again."""
    words = ("ensemble", "--vary", "SEED=1,2,3", "--ranks", "1", "--folder", "runs/seeds")
    done = megads(*words, **SHORT, PYTHONPATH=megads.plant(FAILS))
    assert done.returncode == 1, done.stderr
    assert "SEED=2 failed" in done.stderr
    assert "planted" in done.stderr
    table = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()[1:4]}
    assert table == {"SEED=1": "done", "SEED=2": "failed", "SEED=3": "done"}
    losses = {seed: megads.losses(f"runs/seeds/SEED={seed}") for seed in (1, 3)}
    assert all(len(each) == 3 for each in losses.values())
    assert losses[1] != losses[3]

    again = megads(*words, **SHORT)
    assert again.returncode == 0, again.stderr
    assert {seed: megads.losses(f"runs/seeds/SEED={seed}") for seed in (1, 3)} == losses
    assert len(megads.losses("runs/seeds/SEED=2")) == 3
    starts = (megads.folder / "runs/seeds/SEED=2/attempts.jsonl").read_text().splitlines()
    assert len({json.loads(line)["started"] for line in starts}) == 2
    listed = megads("report", "runs/seeds", "--text")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["run", "SEED=1", "SEED=2", "SEED=3"]


def test_megads_stop_saves_all_runs_and_the_rest_is_trained_later(megads):
    words = ("ensemble", "--vary", "SEED=1,2", "--hosts", "1", "--folder", "runs/s")
    slow = {**SHORT, "TRAIN_ITERS": "1000", "PYTHONPATH": megads.plant(SLOW)}
    process = megads.start(*words, **slow)
    for line in process.stderr:
        if "starts on" in line:
            break
    run = megads.folder / "runs/s/SEED=1/metrics.jsonl"
    while not run.exists() or run.stat().st_size == 0:
        assert process.poll() is None
        time.sleep(0.05)
    stopped = megads("stop", "runs/s")
    assert stopped.returncode == 0, stopped.stderr
    assert "all runs will save and stop" in stopped.stdout
    _, err = process.communicate(timeout=300)
    assert process.returncode == 75, err
    reached = len(megads.losses("runs/s/SEED=1"))
    assert 0 < reached < 1000
    assert not (megads.folder / "runs/s/SEED=2").exists()
    assert "stopping 1 run after a save; 1 not started" in err
    done = megads(*words, **{**SHORT, "TRAIN_ITERS": str(reached + 1)})
    assert done.returncode == 0, done.stderr
    assert len(megads.losses("runs/s/SEED=1")) == reached + 1
    assert len(megads.losses("runs/s/SEED=2")) == reached + 1
