"""A run folder with anything in it is a row of `megads runs`; the others stay visible."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from megads.cli.runs import runs
from megads.monitor.run_state.outcome import Outcome, read_heartbeat, read_outcome, write_outcome
from megads.monitor.run_state.runs import facts_of

OUTCOME = {"exit_code": 0, "message": "", "iteration": 3, "kind": "done", "rank": -1, "host": ""}
BEAT = {"iteration": 1, "phase": "step", "since": 1.0, "time": 1.0, "pid": 1, "host": "h"}

FILES = {
    "yaml-brackets": ("config.yaml", "[" * 100_000, "config.yaml is nested deeper than 64 levels"),
    "yaml-no": ("config.yaml", "a: b: c", "config.yaml is not YAML"),
    "yaml-list": ("config.yaml", "- 1", "config.yaml holds no settings"),
    "yaml-long": ("config.yaml", " " * (2 << 20), "config.yaml has more than 1 MiB"),
    "yaml-number": ("config.yaml", "launch: {timeout_s: " + "1" * 5000 + "}", "config.yaml is not YAML"),
    "outcome-deep": ("outcome.json", "[" * 100_000, "outcome.json cannot be read"),
    "outcome-long": ("outcome.json", json.dumps({**OUTCOME, "message": "x" * 10**7}), "outcome.json cannot be read"),
    "outcome-type": ("outcome.json", json.dumps({**OUTCOME, "message": ["x"]}), "outcome.json cannot be read"),
    "outcome-bool": ("outcome.json", json.dumps({**OUTCOME, "exit_code": True}), "outcome.json cannot be read"),
    "outcome-huge": ("outcome.json", json.dumps({**OUTCOME, "iteration": 10**400}), "outcome.json cannot be read"),
    "beat-nan": ("heartbeat.json", json.dumps({**BEAT, "time": float("nan")}), ""),
    "beat-deep": ("heartbeat.json", "[" * 100_000, ""),
    "metrics-inf": ("metrics.jsonl", '{"iteration": Infinity, "lm_loss": 1e999, "valid_loss": "x"}\n', ""),
    "metrics-deep": ("metrics.jsonl", '{"lm_loss": ' + "[" * 100_000 + "\n", ""),
    "metrics-big": ("metrics.jsonl", '{"iteration": ' + "9" * 4000 + ', "lm_loss": 1}\n', ""),
}


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, (file, content, _) in FILES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(content)
    for file in ("config.yaml", "outcome.json", "heartbeat.json", "metrics.jsonl"):
        (tmp_path / f"pipe-{file}").mkdir()
        os.mkfifo(tmp_path / f"pipe-{file}" / file)
    (tmp_path / "zzz-good").mkdir()
    (tmp_path / "zzz-good" / "outcome.json").write_text(json.dumps(OUTCOME))
    return tmp_path


@pytest.mark.timeout(120)
def test_one_bad_folder_hides_no_other(folder):
    done = CliRunner().invoke(runs, [str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    lines = {line.split()[0]: line for line in done.output.splitlines()[1:]}
    assert sorted(lines) == sorted(path.name for path in folder.iterdir())
    assert "done" in lines["zzz-good"]
    for name, (_, _, reason) in FILES.items():
        assert reason in lines[name]
    assert "config.yaml is a pipe, expected a regular file" in lines["pipe-config.yaml"]
    assert "is a pipe, expected a regular file" in lines["pipe-metrics.jsonl"]
    assert "broken" in lines["pipe-outcome.json"]
    json.loads(CliRunner().invoke(runs, [str(folder), "--json"], catch_exceptions=False).output)


def test_a_run_that_was_killed_leaves_one_heartbeat_file_at_most(tmp_path, monkeypatch):
    from megads.monitor.run_state.outcome import Heartbeat, write_heartbeat

    beat = Heartbeat(1, "step", 1.0, 1.0, 1, "h")
    monkeypatch.setattr(os, "replace", lambda *names: None)  # killed before it
    for pid in range(3):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: 1000 + pid)
        write_heartbeat(tmp_path, beat)
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.undo()
    write_heartbeat(tmp_path, beat)
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat.json"]
    assert read_heartbeat(tmp_path) == beat


def test_a_message_of_ten_megabytes_is_written_so_that_it_can_be_read(tmp_path):
    write_outcome(tmp_path, Outcome(1, "begin" + "\x00" * 10**7 + "end", 5, "error"))
    found = read_outcome(tmp_path)
    assert found is not None
    assert (found.exit_code, found.iteration) == (1, 5)
    assert found.message.startswith("begin")
    assert found.message.endswith("end")
    assert facts_of(tmp_path).state == "failed"
