"""The benchmark of generation runs, on a tiny model, and both ways give the same texts."""

from __future__ import annotations

import sys

import torch

from benchmarks import inference

WORDS = "--hidden 64 --layers 1 --prompt 5 --tokens 4 --batches 1 4 --rounds 1 --threads 1 --requests 7 --slots 3"


def test_it_prints_a_line_of_every_batch(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["inference.py", *WORDS.split()])
    inference.main()
    # Packages that transformers imports may print lines of their own.
    lines = capsys.readouterr().out.splitlines()
    table = [line.split() for line in lines if line.lstrip().startswith(("hidden", "64"))]
    names, *rows = table
    assert [row[names.index("batch")] for row in rows] == ["1", "4"]
    assert [row[-1] for row in rows] == ["1/1", "4/4"]
    for row in rows:
        ours, theirs, ratio = (float(row[names.index(name)]) for name in ("engine", "transformers", "ratio"))
        assert abs(ours / theirs - ratio) < 0.02 * ratio + 0.01
    (mixed,) = (line for line in lines if line.startswith("7 requests of "))
    assert ", 3 at a time: engine " in mixed
    assert mixed.endswith("equal 7/7")


def test_batches_of_transformers_give_what_was_asked_for_of_each_request():
    class Module:
        def generate(self, batch, attention_mask, max_new_tokens, **more):
            assert ((batch > 0) == (attention_mask > 0)).all()
            asked.append((batch.tolist(), max_new_tokens))
            added = batch[:, -1:] + torch.arange(1, max_new_tokens + 1)
            return torch.cat([batch, added], dim=1)

    asked = []
    found = inference.by_transformers_mixed(Module(), [[1, 10], [20], [30]], [1, 3, 2], 2)
    assert found == [[11], [21, 22, 23], [31, 32]]
    assert asked == [([[1, 10], [0, 20]], 3), ([[30]], 2)]
