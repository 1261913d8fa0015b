"""A run with STAGE_ENV: its ranks get the staged Python, others what they had."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

from megads.config.schema import LaunchConfig, RunConfig
from megads.launch.request import TrainRequest
from megads.launch.staging import stage
from megads.launch.staging.of_job import staged

REQUEST = TrainRequest(None, (), {}, "host", Path("/checkout"), "/env/bin/python")


@dataclass(frozen=True)
class _Job:
    request: TrainRequest
    run: RunConfig
    facts: object = None


def test_ranks_use_the_staged_python_only_where_it_is_asked_for(monkeypatch):
    asked = []

    def fake(allocation, facts, run, env, *, python, root):
        asked.append((allocation, python, root))
        return stage.Staged("/local/env/bin/python", "/local/checkout", "/local on 2 hosts")

    monkeypatch.setattr(stage, "stage", fake)
    lines, plain = [], _Job(REQUEST, RunConfig())
    assert staged(plain, "hosts", lines.append) is plain
    on = RunConfig(launch=LaunchConfig(stage_env=True))
    started = _Job(replace(REQUEST, started=SimpleNamespace(by="mpiexec")), on)
    assert staged(started, "hosts", lines.append) is started
    assert asked == lines == []
    found = staged(_Job(REQUEST, on), "hosts", lines.append)
    assert asked == [("hosts", "/env/bin/python", Path("/checkout"))]
    assert lines == ["staged   /local on 2 hosts"]
    assert found.request.python == "/local/env/bin/python"
    assert found.request.staged == {"PYTHONPATH": "/local/checkout"}
