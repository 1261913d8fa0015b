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


@pytest.mark.parametrize("error", [ValueError, AttributeError, ImportError, OSError])
def test_content_that_cannot_be_used_is_a_line(compiler, tmp_path, monkeypatch, error):
    cache = CompileCache(tmp_path, 0, writes=True)
    cache.save()

    def refuses(content):
        raise error("no artifacts\nand more")

    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", refuses)
    assert not cache.load()
    assert cache.problem == f"compiled code of an earlier start is not used ({cache.path}): no artifacts"


def test_what_cannot_be_read_is_a_line(compiler, tmp_path):
    cache = CompileCache(tmp_path, 0, writes=True)
    assert not cache.load()
    assert cache.problem == ""
    cache.path.mkdir(parents=True)
    assert not cache.load()
    assert "Is a directory" in cache.problem
    cache.path.rmdir()
    cache.path.parent.rmdir()
    cache.path.parent.write_text("no folder")
    assert not cache.load()
    assert "Not a directory" in cache.problem
