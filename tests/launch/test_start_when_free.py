"""A run waits for the one that holds its folder, and is prepared again."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from megads.config.schema import LaunchConfig, RunConfig
from megads.launch import start_when_free as module
from megads.launch.claims import InUse
from megads.launch.start_when_free import start_when_free


def test_what_is_prepared_after_waiting_is_started(monkeypatch):
    run = RunConfig(launch=LaunchConfig(in_use="wait", walltime="1:00:00"))
    allocation = SimpleNamespace(job_id="")
    folder = SimpleNamespace(path="r")
    job = SimpleNamespace(run=run, request=SimpleNamespace(env={}), allocation=allocation, folder=folder, number=0)
    calls = []

    def start(job, out, begin):
        calls.append(f"start {job.number}")
        if job.number < 2:
            raise InUse("held")
        return 7

    def prepare(request):
        calls.append("prepare")
        return SimpleNamespace(**{**vars(job), "number": calls.count("prepare")})

    monkeypatch.setattr(module, "start", start)
    monkeypatch.setattr(module, "prepare", prepare)
    monkeypatch.setattr(module, "ends_at", lambda *of: 5.0)
    monkeypatch.setattr(module, "wait_for", lambda path, run, refused, ends: calls.append(f"wait {path} {ends}"))
    assert start_when_free(job, io.StringIO()) == 7
    assert calls == ["start 0", "wait r 5.0", "prepare", "start 1", "wait r 5.0", "prepare", "start 2"]


def test_without_the_setting_it_is_refused(monkeypatch):
    def start(job, out, begin):
        raise InUse("held by job 17")

    monkeypatch.setattr(module, "start", start)
    monkeypatch.setattr(module, "ends_at", lambda *of: 0.0)
    job = SimpleNamespace(
        run=RunConfig(), request=SimpleNamespace(env={}), allocation=None, folder=SimpleNamespace(path="r")
    )
    with pytest.raises(InUse, match="held by job 17"):
        start_when_free(job, io.StringIO())
