"""``megads report`` on run folders."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from megads.cli.report import report
from megads.errors import ConfigError
from megads.launch.nodes.memory import NodeMemory
from tests.monitor.report.chain import write_chain


def called(*words: str):
    result = CliRunner().invoke(report, list(words), standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.output


def test_a_run_is_printed_and_has_a_page(tmp_path):
    folder = write_chain(tmp_path / "r")
    out = called(str(folder), "--price", "3")
    assert "cost       2.55 at 3 per host-hour" in out
    assert out.endswith(f"page       {folder / 'report.html'}\n")
    page = (folder / "report.html").read_text()
    assert "report of r" in page
    assert '"charts"' in page  # the curves, too


def test_hosts_of_the_run_that_failed_before_are_named(tmp_path, monkeypatch):
    """As `megads nodes` knows them in this folder; those of other runs and machines are not."""
    folder = write_chain(tmp_path / "r")
    (folder / "config.yaml").write_text("machine: polaris\ntrain:\n  train_iters: 100\n")
    monkeypatch.setenv("MEGADS_NODES", str(tmp_path / "nodes.jsonl"))
    for machine, host in (("polaris", "n2"), ("polaris", "n7"), ("aurora", "n1")):
        NodeMemory(tmp_path / "nodes.jsonl", machine).note(host, "broken", job="101", why="GPU 3 is off the bus")
    lines = [line for line in called(str(folder), "--text").splitlines() if line.startswith("host ")]
    assert len(lines) == 1
    assert lines[0].startswith("host       n2 broken ")
    assert lines[0].endswith(" ago in job 101: GPU 3 is off the bus")


def test_text_and_json_write_no_page_unless_it_is_asked_for(tmp_path):
    folder = write_chain(tmp_path / "r")
    assert json.loads(called(str(folder), "--json"))["lost_steps"] == 10
    called(str(folder), "--text")
    assert not (folder / "report.html").exists()
    called(str(folder), "--text", "-o", str(tmp_path / "x.html"))
    assert (tmp_path / "x.html").is_file()


def test_a_folder_of_runs_stands_for_all_of_them(tmp_path, monkeypatch):
    for name in ("a", "b"):
        write_chain(tmp_path / "runs" / name)
    (tmp_path / "runs/b/metrics.jsonl").unlink()
    monkeypatch.chdir(tmp_path)
    out = called("runs")
    assert [line.split()[0] for line in out.splitlines()] == ["run", "a", "b", "page"]
    assert (tmp_path / "report.html").is_file()
    assert len(json.loads(called("runs/a", "runs/b", "runs/a", "--json"))) == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [("gone", "gone: not found; pass a run's folder"), ("empty", "empty: no run here"), ("file", "file: is a file")],
)
def test_what_is_no_run_is_refused(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=message):
        called(str(tmp_path / name))


def test_a_page_that_cannot_be_written_is_one_line(tmp_path):
    folder = write_chain(tmp_path / "r")
    with pytest.raises(ConfigError, match=r"cannot be written: .*; -o FILE.html names another place"):
        called(str(folder), "-o", str(tmp_path / "gone/x.html"))
