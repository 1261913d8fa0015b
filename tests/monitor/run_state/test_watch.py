"""What a watched run is shown as; the command is tested in tests/cli/test_watch.py."""

import time

from megads.monitor.interval import Interval, megatron_line
from megads.monitor.run_state.outcome import Heartbeat, write_heartbeat
from megads.monitor.run_state.watch import RESTART_S, Watch, log_lines
from megads.monitor.throughput import Speed
from tests.monitor.plots.made import make_run, rows_of


def test_the_end_of_the_log_has_each_step_once(tmp_path):
    interval = Interval()
    interval.add(2.0, Speed(0.5, 8192, 4096, 0.1, None), skipped=False)
    family = megatron_line(60, 100, 480, interval, lr=1e-3, batch=8, loss_scale=1.0, grad_norm=1.0)
    stamp = "2026-01-01 10:00:00,123 "
    (tmp_path / "run.log").write_text(f"{stamp}step 60/100 | loss  2.0000\n{stamp}{family}\n{stamp}saved\n")
    assert log_lines(tmp_path / "run.log") == ["10:00:00 step 60/100 | loss  2.0000", "10:00:00 saved"]


def test_a_line_and_a_screen_say_where_the_run_is(tmp_path):
    make_run(tmp_path / "r", rows_of(60, skipped_iterations=2), TRAIN_ITERS="100")
    now = time.time()
    write_heartbeat(tmp_path / "r", Heartbeat(60, "step", now, now, 1, "n1"))
    watch = Watch(tmp_path / "r")
    assert watch.line().endswith("r  not started")
    assert watch.poll()
    parts = watch.line().split(" | ")
    assert (parts[0], parts[-1]) == ("step 60/100", "skipped 2")
    assert watch.left_s() == 40 * watch.rows.median("step_time_s")
    lines = watch.screen(80, 30)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 30
    assert any("training" in line for line in lines)
    assert not watch.is_over()
    assert not watch.poll()


def test_a_lost_run_is_over_once_it_was_seen_alive_for_a_while(tmp_path):
    make_run(tmp_path / "r", rows_of(3))
    watch, now = Watch(tmp_path / "r"), time.time()
    write_heartbeat(tmp_path / "r", Heartbeat(3, "step", now, now, 1, "n1"))
    watch.poll(now)
    later = now + 2000
    watch.poll(later)
    assert watch.state.name == "lost"
    assert not watch.is_over(later)
    assert watch.is_over(later + RESTART_S)
    assert watch.exit_code() == 1
