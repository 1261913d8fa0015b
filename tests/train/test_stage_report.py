from __future__ import annotations

from pathlib import Path

import pytest

from megads.monitor.log import LOG
from megads.train.stage_report import StageReport
from tests.config.data_stages.files import derived, write_stages


def test_a_stage_is_reported_where_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(LOG, "info", lambda text, *words: said.append(text % words))
    text = "stages:\n- {name: a, iters: 3, seq: 16}\n- {name: b, iters: 2, seq: 32, global_batch: 4}\n"
    run = derived(write_stages(tmp_path, text), SEQ="0")
    report = StageReport(run)
    for iteration, consumed in ((2, 2), (3, 4), (4, 6), (5, 10)):
        report.report(iteration, consumed)
    assert said == [
        "stage    a (1 of 2) at step 2, 2 samples into it: 2 samples x 16 tokens, ends at step 3",
        "stage    b (2 of 2) at step 4: 4 samples x 32 tokens, ends at step 5",
    ]
    assert report.entries(4) == {"stage": 1, "seq_length": 16}
    assert report.entries(6) == {"stage": 2, "seq_length": 32}


def test_a_run_without_stages_reports_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOG, "info", lambda *words: pytest.fail(str(words)))
    report = StageReport(derived(Path(""), DATA_STAGES="", TRAIN_ITERS="1"))
    report.report(1, 0)
    assert report.entries(0) == {}
