"""``megads plot`` as a user calls it, in this process."""

import json
import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from megads.cli import main
from megads.monitor.rows import sealed
from tests.monitor.plots.made import make_run, rows_of, step_row, write_rows


def megads(*words, folder):
    """Call the command in ``folder``; return its exit code and what it printed."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(
            main, [*map(str, words)], env={"MACHINE": "cpu"}, prog_name="megads", catch_exceptions=False
        )
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def test_one_run_gets_its_pictures_beside_its_numbers(tmp_path):
    make_run(tmp_path / "r", rows_of(60))
    done = megads("plot", "r", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "r/plot.png\nr/plot.html\n", "")
    assert (tmp_path / "r/plot.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "r/plot.html").read_text().startswith("<!DOCTYPE html>")


def test_several_runs_and_all_options(tmp_path):
    for name in "ab":
        make_run(tmp_path / name, rows_of(60))
    options = ("--keys", "loss,grad_norm", "--x", "tokens", "--smooth", "5", "-o", "both")
    done = megads("plot", "a", "b/metrics.jsonl", *options, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "both.png\nboth.html\n")
    data = re.search(r'id="data">(.*?)</script>', (tmp_path / "both.html").read_text())[1]
    page = json.loads(data)
    assert [run["name"] for run in page["runs"]] == ["a", "b"]
    assert [chart["name"] for chart in page["charts"]] == ["loss", "grad_norm"]
    assert (page["axis"], page["smooth"]) == ("tokens", 5)


@pytest.mark.parametrize("end", [".png", ".html", ".PNG"])
def test_a_file_name_names_that_file_alone(tmp_path, end):
    make_run(tmp_path / "r", rows_of(20))
    done = megads("plot", "r", "-o", f"p{end}", "--keys", "loss", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"p{end}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"p{end}", "r"]


def test_in_the_terminal_there_are_no_files_and_no_control_codes(tmp_path):
    make_run(tmp_path / "r", rows_of(60))
    done = megads("plot", "r", "--terminal", folder=tmp_path)
    assert done.returncode == 0
    assert "Gradient norm" in done.stdout
    assert "\x1b" not in done.stdout
    assert not (tmp_path / "r/plot.png").exists()


def test_a_schedule_is_drawn_by_the_same_word_and_a_run_of_that_name_by_its_path(tmp_path):
    assert "--preset" in megads("plot", "schedule", "--help", folder=tmp_path).stdout
    make_run(tmp_path / "schedule", rows_of(5))
    done = megads("plot", "./schedule", "--terminal", "--keys", "loss", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shown = megads("plot", "--help", folder=tmp_path).stdout
    assert "RUN..." in shown
    assert "schedule" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone"], "gone: not found"),
        (["empty"], "empty: no run here (no metrics.jsonl)"),
        (["new"], "new: its run has no metrics.jsonl yet"),
        (["r", "nothing"], "nothing/metrics.jsonl: no values yet"),
        (["words"], "words: no values yet"),
        (["r", "--keys", "los"], "--keys los: no run has such a key"),
        (["r", "-o", "gone/x"], "gone/x.png: cannot be written: No such file or directory"),
        (["r", "--x", "steps"], "Invalid value for '--x': 'steps' is not one of"),
        ([], "Missing argument 'RUN...'"),
    ],
)
def test_what_can_not_be_drawn_is_one_line(tmp_path, words, message):
    make_run(tmp_path / "r", rows_of(5))
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "new", []).unlink()
    write_rows(tmp_path / "nothing", [])
    (tmp_path / "words").write_text("no\nnumbers\n")
    done = megads("plot", *words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"megads: {message}")
    assert done.stderr.count("\n") == 1


def test_a_file_that_can_not_be_read_is_one_line(tmp_path):
    path = make_run(tmp_path / "r", rows_of(5))
    path.unlink()
    path.symlink_to(path.name)  # to itself
    done = megads("plot", "r/metrics.jsonl", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("megads: r/metrics.jsonl: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_million_steps_are_drawn_in_five_seconds_and_500_mb(tmp_path):
    path = tmp_path / "big/metrics.jsonl"
    path.parent.mkdir()
    row = json.dumps(step_row(7_777_777, 1_000_000)).split("7777777", 1)
    with open(path, "w") as file:
        for iteration in range(1, 1_000_001):
            loss = row[1] if iteration != 654_321 else re.sub(r'"lm_loss": [^,]*', '"lm_loss": 25.0', row[1])
            file.write(sealed(f"{row[0]}{iteration}{loss}") + "\n")
    assert path.stat().st_size > 300e6
    best, largest = 1e9, 0.0
    # A process begins with the size of the one that starts it, and a test's is large: a small one stands between.
    small = "import subprocess as s, sys, resource as r; s.run(sys.argv[1:], check=True, stdout=2)"
    small += "; used = r.getrusage(r.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    command = [sys.executable, "-c", small, sys.executable, "-m", "megads", "plot", "big"]
    for _ in range(3):  # work, not waiting: others use the host too
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "MACHINE": "cpu"}, check=True, stdout=subprocess.PIPE
        )
        seconds, kilobytes = map(float, done.stdout.split())
        best, largest = min(best, seconds), max(largest, kilobytes)
        if best < 5:
            break
    path.unlink()
    assert best < 5
    assert largest < 500 * 1024
