"""The comparison with transformers: the same sizes, and a note where it cannot be made."""

from __future__ import annotations

import pytest

from megads.bench.models import TINY, settings
from tests.bench.made import ROOT, bench_of, result_of


def test_without_transformers_it_is_skipped(monkeypatch):
    from megads.bench import hugging_face

    monkeypatch.setattr(hugging_face.importlib.util, "find_spec", lambda name: None)
    result = result_of("huggingface")
    hugging_face.measure(bench_of(), result)
    assert (result.status, result.notes[0]) == ("skipped", "transformers is not installed: pip install transformers")


def test_both_programs_have_a_row(monkeypatch):
    pytest.importorskip("transformers")
    import torch

    from megads.bench import hugging_face
    from megads.plan.memory import count_parameters

    sizes: list[int] = []

    def compiled(module, backend):
        sizes.append(sum(each.numel() for each in module.parameters()))
        return module

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(hugging_face, "_ours", lambda bench, run: lambda number: 5.5)
    result = result_of("huggingface")
    hugging_face.measure(bench_of(), result)
    assert [row["program"] for row in result.rows] == ["megads", "transformers, aot_eager"]
    assert all(row["tokens_per_s"] > 0 and 5 < row["loss"] < 7 for row in result.rows)
    assert "times as fast" in result.notes[0]
    assert sizes == [count_parameters(settings(ROOT, 1, TINY).model)]


def test_a_program_that_fails_is_a_line_and_the_other_stays(monkeypatch):
    from megads.bench import hugging_face

    def fails(bench, run, how):
        raise RuntimeError("InductorError: no compiler")

    monkeypatch.setattr(hugging_face, "_theirs", fails)
    monkeypatch.setattr(hugging_face, "_ours", lambda bench, run: lambda number: 5.5)
    result = result_of("huggingface")
    hugging_face.measure(bench_of(), result)
    assert [row["program"] for row in result.rows] == ["megads"]
    assert (result.status, result.notes[0]) == ("partial", "transformers, aot_eager: InductorError: no compiler")
