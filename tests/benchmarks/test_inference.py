"""The benchmark of generation runs, on a tiny model, and both ways give the same texts."""

from __future__ import annotations

import sys

from benchmarks import inference

WORDS = "--hidden 64 --layers 1 --prompt 5 --tokens 4 --batches 1 4 --rounds 1 --threads 1"


def test_it_prints_a_line_of_every_batch(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["inference.py", *WORDS.split()])
    inference.main()
    # Packages that transformers imports may print lines of their own.
    table = [
        line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith(("hidden", "64"))
    ]
    names, *rows = table
    assert [row[names.index("batch")] for row in rows] == ["1", "4"]
    assert [row[-1] for row in rows] == ["1/1", "4/4"]
    for row in rows:
        ours, theirs, ratio = (float(row[names.index(name)]) for name in ("engine", "transformers", "ratio"))
        assert abs(ours / theirs - ratio) < 0.02 * ratio + 0.01
