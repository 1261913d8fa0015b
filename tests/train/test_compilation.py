"""Layers are compiled where settings and device ask for it; the log says what was done and what was not."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from megads.cluster.hosts import this_host
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.models.kernels import cache, compiled, liger, probe
from megads.monitor.log import LOG
from megads.parallel.loss import whole_cross_entropy
from megads.train import compilation
from megads.train.compilation import compile_run
from tests.engine.plain import settings
from tests.ranks import groups_of, run_ranks

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

    def compile_layers(modules, say, warn):
        found.extend(modules)
        say("compiled Block for [2, 4] in 1.0 s")

    monkeypatch.setattr(compiled, "compile_layers", compile_layers)
    monkeypatch.setattr(probe, "why_not", lambda device: "")
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


def test_a_cache_that_cannot_be_read_is_a_line_of_one_rank(tmp_path, logged, calls, monkeypatch):
    monkeypatch.setattr(cache.CompileCache, "save", lambda self: "")
    (tmp_path / cache.FOLDER).write_text("no folder")
    for groups in (ONE, Groups(Grid(data=2), 1)):
        start(tmp_path, SimpleNamespace(module="module"), groups, **{"engine.kernels": "compiled"})
    assert len([line for line in logged.messages if line.startswith("compiled code of an earlier start is not")]) == 1
    assert calls == ["module", "module"]


def _rank_1_has_no_compiler(folder: str) -> None:
    from torch._inductor.cpp_builder import cpp_compiler_search

    groups, asked, lines = groups_of(tensor=2), [], []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    LOG.addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "compile_layers", lambda *args, **more: asked.append(args))
        if groups.rank == 1:
            patch.setenv("PATH", folder)
            patch.delenv("CXX", raising=False)
            patch.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
            cpp_compiler_search.cache_clear()
        else:
            patch.setattr(probe, "why_not", lambda device: "")
        run = settings({"tensor": 2}, **{"engine.kernels": "compiled"})
        compile_run(run, SimpleNamespace(module="module"), Path(folder), groups, torch.device("cpu"))
    LOG.removeHandler(handler)
    cpp_compiler_search.cache_clear()
    assert asked == []
    if groups.rank == 1:
        assert lines == []
        return
    (line,) = lines
    assert line.startswith(f"layers run eagerly: rank 1 on {this_host()} cannot compile: ")
    assert "No working C++ compiler found" in line


def test_where_one_rank_has_no_compiler_all_run_eagerly(tmp_path):
    run_ranks(2, _rank_1_has_no_compiler, str(tmp_path), timeout_s=120)


def test_ranks_that_cannot_compile_are_one_line(tmp_path, logged, calls, monkeypatch):
    monkeypatch.setattr(compilation, "first_text", lambda mine: "rank 1 on b cannot compile: no Triton")
    start(tmp_path, SimpleNamespace(module="module"), **{"engine.kernels": "compiled"})
    start(tmp_path, SimpleNamespace(module="module"), Groups(Grid(data=3), 1), **{"engine.kernels": "compiled"})
    assert calls == []
    assert logged.messages == ["layers run eagerly: rank 1 on b cannot compile: no Triton"]


def test_one_rank_speaks(tmp_path, logged, calls):
    start(tmp_path, SimpleNamespace(module="module"), Groups(Grid(data=2), 1), **{"engine.kernels": "compiled"})
    assert calls == ["module"]
    assert logged.messages == []


def test_ligers_kernels_take_the_place_of_eager_ones(tmp_path, logged, calls, monkeypatch):
    def use_liger(modules, say):
        say(f"liger for {modules}")

    monkeypatch.setattr(liger, "use_liger", use_liger)
    for rank in (0, 1):
        start(tmp_path, SimpleNamespace(module="module"), Groups(Grid(data=2), rank), **{"engine.kernels": "liger"})
    assert (calls, logged.messages) == ([], ["liger for ['module']"])


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
