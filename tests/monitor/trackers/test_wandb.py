"""Weights & Biases: what it gets, and that nothing of it reaches the run."""

from __future__ import annotations

import json
import logging
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megads.config.run_folder import save_config
from megads.config.sources.resolve import resolve
from megads.monitor.metrics import MetricsFile
from megads.monitor.trackers import wandb as module
from megads.monitor.trackers.metrics_sink import MetricsSink
from megads.monitor.trackers.wandb import RUN_ID, Wandb
from tests.monitor.trackers.rows import run_of, save, step

KEY = "0123456789abcdef0123456789abcdef01234567"


def run_in(folder: Path, **settings: str) -> Path:
    """Make a run folder with the settings of a run that ``megads train`` would write."""
    resolved = resolve("7B", env={"WANDB_MODE": "offline", "RUN_NAME": "mine", **settings}, machine="generic")
    save_config(resolved.run, resolved.origins, folder / "config.yaml")
    return folder


def environment(home: Path, **more: str) -> dict[str, str]:
    root = str(Path(__file__).parents[3])
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": root, "WANDB_API_KEY": KEY, **more}


def records(path: Path) -> Iterator[Any]:
    """Yield what a file of Weights & Biases holds: a log as LevelDB has it, of the library's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, whole, at = path.read_bytes(), b"", 7
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # all of it, or its last part
            yield Record.FromString(whole)
            whole = b""


def history(path: Path) -> list[dict[str, Any]]:
    points = [record.history for record in records(path) if record.WhichOneof("record_type") == "history"]
    return [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in point.item
            if not (item.key or item.nested_key[0]).startswith("_")
        }
        for point in points
    ]


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each iteration, without what has no number."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(row["iteration"], {}).update({k: v for k, v in row.items() if v is not None})
    return [found[iteration] for iteration in sorted(found)]


@pytest.mark.slow
def test_an_offline_run_holds_the_rows_and_nothing_secret_and_is_the_same_run_on_resume(tmp_path, caplog):
    pytest.importorskip("wandb")
    caplog.set_level(logging.INFO, logger="megads")
    folder = run_in(tmp_path)
    rows = [*run_of(6), save(5), step(7)]
    ids = []
    for iteration, part in ((0, rows), (5, run_of(9, first=6))):
        file = MetricsFile(folder / "metrics.jsonl", iteration)
        sent = Wandb(folder, iteration, environment(tmp_path))
        started = time.perf_counter()
        for row in part:
            file.write(row)
            sent.write(row)
        sent.close()
        file.close()
        assert sent.process.poll() is None or time.perf_counter() - started < 0.5, "waited for its end"
        assert sent.settle() == ""
        assert sent.process.returncode == 0
        ids.append((folder / RUN_ID).read_text())
    assert ids[0] == ids[1]
    first, second = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert first.name == second.name == f"run-{ids[0].strip()}.wandb"
    wanted = merged(run_of(7, every=5))
    wanted[5] |= {key: value for key, value in save(5).items() if key != "iteration"}  # came late
    assert history(first) == wanted[:7]
    assert history(second) == merged(run_of(9, first=6))
    (run,) = [record.run for record in records(first) if record.WhichOneof("record_type") == "run"]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert config["model.hidden_size"] == 4096
    assert (run.project, run.display_name) == ("megads", "mine")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "config.yaml"]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert not [path for path in files if path.name in ("requirements.txt", "wandb-metadata.json", "output.log")]
    assert [text for text in caplog.messages if "`wandb sync " in text and "offline-run" in text]


@pytest.mark.slow
def test_without_a_network_the_run_is_kept_offline_and_no_row_waits(tmp_path, caplog):
    pytest.importorskip("wandb")
    caplog.set_level(logging.INFO, logger="megads")
    folder = run_in(tmp_path, WANDB_MODE="online", WANDB_INIT_TIMEOUT="2", WANDB_PROJECT="p")
    env = environment(tmp_path, WANDB_BASE_URL="http://127.0.0.1:9")
    file = MetricsFile(folder / "metrics.jsonl")
    sent = Wandb(folder, 0, env)
    started = time.perf_counter()
    for row in run_of(50):
        file.write(row)
        sent.write(row)
    assert time.perf_counter() - started < 1.9
    sent.close()
    file.close()
    assert sent.settle() == ""
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    assert history(path) == merged(run_of(50))
    assert any("kept offline, because it cannot be reached" in text for text in caplog.messages)
    assert KEY not in caplog.text


def test_a_process_that_takes_nothing_costs_no_time_and_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WAIT_S", 0.2)
    sent = Wandb(tmp_path, 0, {}, (sys.executable, "-c", "import time; time.sleep(60)"))
    sent.process.send_signal(signal.SIGSTOP)
    started = time.perf_counter()
    for _ in range(1000):
        sent.write(step(1, note="x" * 1000))
    sent.close()
    assert time.perf_counter() - started < 50
    # Nothing is there that a later command could send.
    assert "has nothing of this run" in sent.settle()
    assert sent.process.returncode is not None


def test_a_process_that_ends_is_told_once(tmp_path, caplog):
    sent = Wandb(tmp_path, 0, {}, (sys.executable, "-c", f"print('no key {KEY}'); raise SystemExit(3)"))
    sent.env = {"WANDB_API_KEY": KEY}
    sent.process.wait()

    class File:
        def write(self, row: Any) -> None:
            pass

        def close(self) -> None:
            pass

    caplog.set_level(logging.INFO, logger="megads")
    tracks = MetricsSink(File(), [sent])  # type: ignore[arg-type]
    for i in range(3):
        tracks.write(step(i + 1))
    tracks.close()
    sent.reader.join()
    assert [text for text in caplog.messages if "is disabled" in text] == [
        "Weights & Biases is disabled, the run continues: MegadsError: its process ended with 3"
    ]
    assert KEY not in caplog.text


def test_a_run_that_begins_anew_is_another_one(tmp_path):
    one, again, new = (module._run_id(tmp_path, iteration) for iteration in (0, 7, 0))
    assert one == again != new


def test_a_new_run_goes_on_with_the_one_that_is_named_and_a_resume_with_its_own(tmp_path):
    named, again = (module._run_id(tmp_path, iteration, "my-run_2") for iteration in (0, 7))
    assert named == again == "my-run_2"
    assert module._run_id(tmp_path, 9, "another") == "my-run_2"
    assert module._run_id(tmp_path, 0, "another") == "another"
