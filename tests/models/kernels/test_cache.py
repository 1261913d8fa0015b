"""Compiled code in the run's folder: written by one rank, read by all, never the end of a run."""

from __future__ import annotations

import pytest
import torch

from megads.models.kernels.cache import CompileCache


@pytest.fixture
def compiler(monkeypatch):
    loaded: list[bytes] = []
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"code", None))
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", lambda content: loaded.append(content) or "info")
    return loaded


def test_a_restart_reads_what_its_stage_compiled(compiler, tmp_path):
    assert not CompileCache(tmp_path, 1, writes=False).load()
    assert CompileCache(tmp_path, 1, writes=True).save() == ""
    assert not CompileCache(tmp_path, 0, writes=False).load()
    assert CompileCache(tmp_path, 1, writes=False).load()
    assert compiler == [b"code"]
    assert [path.name for path in (tmp_path / "compiled").iterdir()] == [f"stage-1-torch-{torch.__version__}.bin"]


def test_one_rank_writes(compiler, tmp_path):
    assert CompileCache(tmp_path, 0, writes=False).save() == ""
    assert list(tmp_path.iterdir()) == []


def test_nothing_compiled_is_not_written(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: None)
    assert CompileCache(tmp_path, 0, writes=True).save() == ""
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_line(compiler, tmp_path):
    (tmp_path / "compiled").write_text("no folder")
    assert CompileCache(tmp_path, 0, writes=True).save().startswith("compiled code is not kept for a restart: ")


def test_what_another_torch_wrote_is_not_read(compiler, tmp_path, monkeypatch):
    CompileCache(tmp_path, 0, writes=True).save()
    monkeypatch.setattr(torch, "__version__", "99.0")
    assert not CompileCache(tmp_path, 0, writes=False).load()


def test_content_that_is_cut_is_not_used(compiler, tmp_path, monkeypatch):
    cache = CompileCache(tmp_path, 0, writes=True)
    cache.save()

    def refuses(content):
        raise ValueError("no artifacts")

    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", refuses)
    assert not cache.load()
