import json

from megads.monitor.metrics import MetricsFile, read_metrics


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
    assert json.loads(path.read_text()) == {"iteration": 1, "lm_loss": None, "grad_norm": None, "mfu": None}
