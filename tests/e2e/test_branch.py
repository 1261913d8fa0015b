"""Branches of a run, by the command: the run stays as it is, and keeps or loses its checkpoints without them."""

import json
import os
import shutil

import pytest

from tests.data.factory import write_dataset, write_list
from tests.e2e.test_resume import numbers

ENV = {
    **{"TOKENIZER_TYPE": "NullTokenizer", "VOCAB_SIZE": "256", "DATA_FILE_LIST": "list.txt"},
    **{"EVAL_INTERVAL": "0", "LR_DECAY_STYLE": "constant", "LR_WARMUP_ITERS": "2", "PLANNED_ITERS": "12"},
}
ANNEAL = """stages:
- {name: same, iters: 2, lr: constant}
- {name: anneal, iters: 2, mixture: {b: 1}, lr: {to: 0, shape: linear}}
"""


def seen(folder):
    """Return the files below a folder with their content, but for the heartbeat and the lock of a run."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def steps(megads, run_dir):
    return [row for row in megads.rows(run_dir) if "lm_loss" in row]


@pytest.fixture
def main(megads):
    for name in ("a", "b"):
        write_dataset(megads.folder, [50] * 40, 256, name=name, seed=ord(name))
    write_list(megads.folder / "list.txt", "1 a a", "1 b b")
    (megads.folder / "anneal.yaml").write_text(ANNEAL)
    found = megads.train("main", SAVE_INTERVAL="4", EXIT_INTERVAL="8", **ENV)
    assert found.returncode == 75, found.stderr
    return megads


@pytest.mark.slow
def test_a_branch_reads_on_then_takes_its_own_mixture(main):
    before = seen(main.folder / "main")
    words = ("branch", "main", "--at", "4", "--name", "anneal")
    found = main(*words, DATA_STAGES="anneal.yaml", TRAIN_ITERS="", EXIT_INTERVAL="6")
    assert found.returncode == 75, found.stderr
    assert "branch   " in found.stderr
    assert "samples may repeat" not in found.stderr
    assert seen(main.folder / "main") == before
    # The same command resumes it, without the checkpoints of the run that it is of.
    shutil.rmtree(main.folder / "main/checkpoints")
    found = main(*words, DATA_STAGES="anneal.yaml", TRAIN_ITERS="")
    assert found.returncode == 0, found.stderr
    point = json.loads((main.folder / "anneal/branch.json").read_text())
    assert (point["iteration"], point["consumed_samples"], point["of"]) == (4, 32, str(main.folder / "main"))
    rows, parent = steps(main, "anneal"), steps(main, "main")
    assert numbers(rows)[:2] == numbers(parent)[4:6]  # the samples of the run, in its order
    assert [row["iteration"] for row in rows] == [5, 6, 7, 8]
    assert [row["stage"] for row in rows] == [2, 2, 3, 3]
    rate = parent[-1]["learning_rate"]
    assert [row["learning_rate"] for row in rows] == pytest.approx([rate, rate, rate, rate / 2])
    listed = main("runs", ".").stdout.splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [["main", "stopped"], ["anneal", "@4"]]
    assert listed[2].startswith("  anneal @4")
    plotted = main("plot", "main", "anneal", "--x", "tokens", "-o", "both.html")
    assert plotted.returncode == 0, plotted.stderr
    assert '"branch":{"count":1' in (main.folder / "both.html").read_text()


@pytest.mark.slow
def test_a_branch_with_other_settings_and_what_is_refused(main):
    found = main("branch", "main", "--name", "low", LR="1e-5", LR_WARMUP_ITERS="1", TRAIN_ITERS="9")
    assert found.returncode == 0, found.stderr
    (row,) = steps(main, "low")
    assert (row["iteration"], row["learning_rate"], row["consumed_samples"]) == (9, 1e-5, 72)
    links = [path.stat().st_nlink for path in (main.folder / "low/checkpoints/iter_0000008").iterdir()]
    assert set(links) == {2}
    copied = main("branch", "main", "--at", "4", "--name", "copied", "--copy", "--prepare", TRAIN_ITERS="9")
    assert copied.returncode == 0, copied.stderr
    assert {path.stat().st_nlink for path in (main.folder / "copied/checkpoints/iter_0000004").iterdir()} == {1}
    there = sorted(os.listdir(main.folder))
    for words, env, message in (
        (("none", "--name", "x"), {}, "none: no run here (no config.yaml)"),
        (("main", "--name", "x", "--at", "5"), {}, "no checkpoint of iteration 5; the newest are 4, 8"),
        (("main", "--name", "../x"), {}, "--name '../x': expected up to 80 letters"),
        (("main", "--name", "low", "--at", "4"), {}, "low: already exists, a branch of"),
        (("main", "--name", "main"), {}, "main: already exists, no branch of this run; use another --name"),
        (("main", "--name", "x"), {"LOAD": "main"}, "LOAD=main: megads branch sets it; unset it"),
        (("main", "--name", "x"), {"HIDDEN": "32"}, "hidden_size=64"),
        (("main", "--name", "x", "--fresh"), {}, "--fresh: a branch is a new run"),
        (("main", "--name", "x"), {"DATA_STAGES": "none.yaml"}, "none.yaml: no such file"),
    ):
        found = main("branch", *words, **{"TRAIN_ITERS": "9", **env})
        assert found.returncode == 2, found.stderr
        assert message in found.stderr
    dry = main("branch", "main", "--at", "4", "--name", "x", "--dry-run", TRAIN_ITERS="9")
    assert dry.returncode == 0, dry.stderr
    assert sorted(os.listdir(main.folder)) == there
