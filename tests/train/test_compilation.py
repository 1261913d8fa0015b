"""Layers are compiled where settings and device ask for it; the log says what was done and what was not."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.models.kernels import cache, compiled
from megads.parallel.loss import whole_cross_entropy
from megads.train.compilation import compile_run
from tests.engine.plain import settings

ONE = Groups(Grid(), 0)


@pytest.fixture
def logged(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("megads"), "propagate", True)
    caplog.set_level(logging.INFO, logger="megads")
    return caplog


@pytest.fixture
def calls(monkeypatch):
    """Return the modules that are asked to be compiled; a first line is said of each call."""
    found: list[object] = []

    def compile_layers(modules, say):
        found.extend(modules)
        say("compiled Block for [2, 4] in 1.0 s")

    monkeypatch.setattr(compiled, "compile_layers", compile_layers)
    return found


def start(tmp_path, engine, groups: Groups = ONE, **changes: str) -> None:
    compile_run(settings({}, **changes), engine, tmp_path, groups, torch.device("cpu"))


def test_a_cpu_stays_eager_silently(tmp_path, logged, calls):
    start(tmp_path, SimpleNamespace(module="module"))
    assert (calls, logged.messages) == ([], [])


def test_what_keeps_a_run_from_being_compiled_is_a_line(tmp_path, logged, calls):
    changes = {"engine.kernels": "compiled", "model.attention_dropout": "0.1"}
    start(tmp_path, SimpleNamespace(module="module"), **changes)
    start(tmp_path, SimpleNamespace(module="module"), Groups(Grid(data=2), 1), **changes)
    assert calls == []
    assert logged.messages == ["layers run eagerly: dropout seeds its generator on the host at every layer"]


def test_every_chunk_of_a_stage_is_compiled(tmp_path, logged, calls, monkeypatch):
    saved: list[str] = []
    monkeypatch.setattr(cache.CompileCache, "load", lambda self: True)
    monkeypatch.setattr(cache.CompileCache, "save", lambda self: saved.append(self.path.name) or "disk full")
    engine = SimpleNamespace(module="first", chunks=["first", "second"])
    start(tmp_path, engine, **{"engine.kernels": "compiled"})
    assert calls == ["first", "second"]
    assert logged.messages[0].startswith("compiled code of an earlier start: ")
    assert logged.messages[1:] == ["compiled Block for [2, 4] in 1.0 s", "disk full"]
    assert len(saved) == 1


def test_one_rank_speaks(tmp_path, logged, calls):
    start(tmp_path, SimpleNamespace(module="module"), Groups(Grid(data=2), 1), **{"engine.kernels": "compiled"})
    assert calls == ["module"]
    assert logged.messages == []


def test_inductors_code_gives_the_loss_of_eager(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    import torch._inductor.config

    said: list[str] = []
    loss = compiled.Compiled(whole_cross_entropy, "the loss", ONE, said.append)
    logits, labels = torch.randn(2, 3, 8, requires_grad=True), torch.arange(6).view(2, 3)
    with torch._inductor.config.patch(compile_threads=1):  # in this process
        torch.testing.assert_close(loss(logits, labels, 7), whole_cross_entropy(logits, labels, 7))
    assert said[0].startswith("compiled the loss for [2, 3, 8] in ")
    store = cache.CompileCache(tmp_path, 0, writes=True)
    assert store.save() == ""
    assert store.load()
