"""``megads watch`` and ``megads runs`` as a user calls them."""

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from megads.monitor.metrics import MetricsFile
from megads.monitor.run_state.outcome import Heartbeat, Outcome, write_heartbeat, write_outcome
from tests.cli.test_plot import megads
from tests.monitor.plots.made import make_run, rows_of, step_row


def live(folder, iteration):
    now = time.time()
    write_heartbeat(folder, Heartbeat(iteration, "step", now, now, 1, "n1"))


def begin(folder, *words, **options):
    command = [sys.executable, "-m", "megads", "watch", "r", "--interval", "0.1", *words]
    return subprocess.Popen(command, cwd=folder, text=True, **options)


def lines_until(watched, is_last):
    """Return the next lines that ``watched`` prints, up to the first one for which ``is_last`` holds."""
    lines = []
    for line in watched.stdout:
        lines.append(line)
        if is_last(line):
            return lines
    raise AssertionError(f"megads watch ended after {lines}\n{watched.communicate(timeout=100)[1]}")


def test_a_run_is_followed_from_before_its_begin_over_a_resume_to_its_end(tmp_path):
    run = tmp_path / "r"
    run.mkdir()
    (run / "submitted.yaml").write_text("name: r\n")
    watched = begin(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    lines = lines_until(watched, lambda line: True)
    path = make_run(run, rows_of(3, every=99), TRAIN_ITERS="10")
    live(run, 3)
    lines += lines_until(watched, lambda line: line.startswith("step 3/10"))
    resumed = MetricsFile(path, 2)
    resumed.write(step_row(3, 10, lm_loss=4.25))
    lines += lines_until(watched, lambda line: "loss 4.25" in line)
    resumed.write(step_row(4, 10))
    lines += lines_until(watched, lambda line: line.startswith("step 4/10"))
    resumed.close()
    write_outcome(run, Outcome(0, "done", 4, "done"))
    rest, errors = watched.communicate(timeout=100)
    assert (watched.returncode, errors) == (0, "")
    assert lines[0] == "r  not started: submitted; its job has not started\n"
    assert rest.endswith("r  done\n")
    assert "\x1b" not in "".join(lines) + rest


@pytest.mark.parametrize(
    ("outcome", "code", "told"),
    [
        (Outcome(0, "done", 5, "done"), 0, "r  done"),
        (Outcome(75, "asked to stop", 5, "stopped"), 75, "r  stopped: asked to stop"),
        (Outcome(1, "rank 1 host n2: ZeroDivisionError", 5, "error", 1, "n2"), 1, "r  failed: error: rank 1 host n2"),
        (Outcome(2, "no data", 0, "wrong"), 2, "r  failed: wrong: no data"),
        (None, 1, "r  lost"),
    ],
)
def test_the_exit_code_tells_how_the_run_ended(tmp_path, outcome, code, told):
    make_run(tmp_path / "r", rows_of(5))
    if outcome:
        write_outcome(tmp_path / "r", outcome)
    else:
        write_heartbeat(tmp_path / "r", Heartbeat(5, "step", 1.0, 1.0, 1, "n1"))
        os.utime(tmp_path / "r/heartbeat.json", (1, 1))
    done = megads("watch", "r", folder=tmp_path)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.splitlines()[-1].startswith(told)


def test_a_failure_that_is_started_again_is_not_the_end(tmp_path):
    run = tmp_path / "r"
    make_run(run, rows_of(5), MAX_RESTARTS="1", TRAIN_ITERS="9")
    write_outcome(run, Outcome(1, "rank 1 died", 5, "killed"))
    watched = begin(tmp_path, stdout=subprocess.PIPE)
    assert "failed" in watched.stdout.readline()
    (run / "outcome.json").unlink()
    live(run, 5)
    assert watched.stdout.readline().rstrip().endswith("GiB")
    write_outcome(run, Outcome(0, "done", 9, "done"))
    watched.communicate(timeout=100)
    assert watched.returncode == 0


def test_ctrl_c_leaves_quietly(tmp_path):
    make_run(tmp_path / "r", rows_of(5))
    live(tmp_path / "r", 5)
    watched = begin(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    watched.stdout.readline()
    watched.send_signal(signal.SIGINT)
    _, errors = watched.communicate(timeout=100)
    assert (watched.returncode, errors) == (130, "")


def test_on_a_terminal_there_is_a_screen(tmp_path):
    run = tmp_path / "r"
    make_run(run, rows_of(60), TRAIN_ITERS="100")
    (run / "log").mkdir()
    log = "2026-01-01 10:00:00,123 step 60/100 | loss 2\n2026-01-01 10:00:01,000 straggler: rank 3 on n2 is slow\n"
    (run / "log/run.log").write_text(log)
    live(run, 60)
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "90", "LINES": "40"}
    watched = begin(tmp_path, "--once", stdout=theirs, env=env)
    assert watched.wait(timeout=100) == 0
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the terminal is closed
        pass
    lines = shown.decode().splitlines()
    assert max(map(len, lines)) <= 90
    assert lines[0].startswith("r  running: in step")
    assert "####" in lines[1]
    assert "step 60/100 60%  ETA 2s, at " in lines[1]
    assert any(line.startswith("straggler: rank 3 on n2") for line in lines)
    assert any("training" in line for line in lines)
    assert any(line.startswith("10:00:00 step 60/100") for line in lines)


def test_a_folder_without_a_run_is_one_line(tmp_path):
    for words in (["watch", "gone", "--once"], ["watch", ".", "--once"]):
        done = megads(*words, folder=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "no run here" in done.stderr
    done = megads("runs", "gone", folder=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_runs_are_listed_for_people_and_for_programs(tmp_path):
    make_run(tmp_path / "runs/a", rows_of(60))
    write_outcome(tmp_path / "runs/a", Outcome(0, "done", 60, "done"))
    make_run(tmp_path / "runs/b", rows_of(5))
    (tmp_path / "runs/b/config.yaml").write_text("{")
    shown = megads("runs", folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [line.split()[:2] for line in shown.stdout.splitlines()] == [
        ["run", "state"],
        ["a", "done"],
        ["b", "broken"],
    ]
    found = json.loads(megads("runs", "--json", folder=tmp_path).stdout)
    assert [(each["state"], each["step"]) for each in found] == [("done", 60), ("broken", 5)]


def test_looking_imports_no_torch():
    modules = [*(f"megads.cli.{name}" for name in ("plot", "runs", "watch")), "megads.monitor.run_state.watch"]
    modules += ["megads.monitor.plots.html.page", "megads.monitor.plots.picture"]
    code = f"import sys, {', '.join(modules)}; print([m for m in ('torch', 'deepspeed') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
