import pytest

from megads.monitor.metrics import MetricsFile, read_metrics
from tests.disks import file_limit


def write(path, iterations, resume_at=0):
    file = MetricsFile(path, resume_at)
    for iteration in iterations:
        file.write({"iteration": iteration, "lm_loss": 1.0 / iteration})
    file.close()


def test_resume_keeps_each_iteration_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2, 3, 4, 5])
    write(path, [4, 5, 6], resume_at=3)
    assert [row["iteration"] for row in read_metrics(path)] == [1, 2, 3, 4, 5, 6]


def test_a_new_run_starts_an_empty_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2])
    write(path, [1])
    assert [row["iteration"] for row in read_metrics(path)] == [1]


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2])
    with open(path, "a") as file:
        file.write('{"iteration": 3, "lm_l')
    assert [row["iteration"] for row in read_metrics(path)] == [1, 2]
    write(path, [3], resume_at=2)
    assert [row["iteration"] for row in read_metrics(path)] == [1, 2, 3]


def test_rows_are_on_disk_when_write_returns(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write({"iteration": 1})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"iteration": 1}]
    file.close()


def test_values_that_json_does_not_know_become_null(tmp_path):
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write({"iteration": 1, "lm_loss": float("nan"), "grad_norm": float("inf"), "mfu": None})
    file.close()
    assert read_metrics(path) == [{"iteration": 1, "lm_loss": None, "grad_norm": None, "mfu": None}]


def test_while_the_disk_is_full_rows_wait(tmp_path, caplog):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write({"iteration": 1})
    size = (tmp_path / "metrics.jsonl").stat().st_size
    with file_limit(size + 7):
        for iteration in (2, 3):
            file.write({"iteration": iteration})
    assert (tmp_path / "metrics.jsonl").stat().st_size == size + 7  # a part of a row
    file.write({"iteration": 4})
    file.close()
    assert [row["iteration"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


def test_rows_that_never_reach_the_disk_are_an_error(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    with file_limit(3):
        file.write({"iteration": 1})
        with pytest.raises(OSError, match="File too large"):
            file.close()


def test_what_is_no_row_is_left_out_on_resume_and_told(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2, 3, 4])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:9] + "\n" + "null\n" + "".join(lines[2:]))
    caplog.set_level("INFO", logger="megads")
    MetricsFile(path, 4).close()
    assert [row["iteration"] for row in read_metrics(path)] == [1, 3, 4]
    assert "2 lines are no rows, skipped" in caplog.text
