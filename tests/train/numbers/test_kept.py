"""The report of a step with NaN or Inf: written, read, and refused in one line where it is damaged."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from megads.errors import ConfigError
from megads.train.numbers.kept import REPORT, Kept, folder_of, read_kept, write_kept
from megads.train.numbers.operators import Origin

ORIGIN = Origin("forward", 1, "layers.0.mlp", "aten.mul.Tensor", "", 17, "Inf", 3, 32, (2, 16), "float32", 1e38)
KEPT = Kept(7, ORIGIN, 3, "b", 52, [[1, 2, 3], [4, 5, 6]], 4, 1.0, 0)


@pytest.mark.parametrize("kept", [KEPT, replace(KEPT, end=None)])
def test_what_was_written_is_read(tmp_path, kept):
    folder = folder_of(tmp_path, 7)
    assert folder.name == "nonfinite-0000007"
    write_kept(folder, kept)
    assert read_kept(folder) == kept


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"batch": []}, "batch has no rows of one length"),
        ({"batch": [[1], [1, 2]]}, "batch has no rows of one length"),
        ({"origin": {"phase": "forward"}}, "origin has count, dtype"),
        ({"iteration": "x"}, "invalid literal"),
    ],
)
def test_a_damaged_report_is_named(tmp_path, change, what):
    write_kept(tmp_path, KEPT)
    content = json.loads((tmp_path / REPORT).read_text())
    (tmp_path / REPORT).write_text(json.dumps({**content, **change}))
    with pytest.raises(ConfigError, match=rf"report\.json: damaged: {what}"):
        read_kept(tmp_path)
    (tmp_path / REPORT).write_text("{")
    with pytest.raises(ConfigError, match=r"report\.json: damaged"):
        read_kept(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(ConfigError, match=r"Not a directory|File exists"):
        write_kept(tmp_path / "a/b", KEPT)
