"""``megads worker``: which run it takes."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from megads.cli import main


@pytest.mark.parametrize("words", [[], ["runs/7B", "--config", "runs/7B/config.yaml"]])
def test_a_rank_needs_one_run(words):
    done = CliRunner().invoke(main, ["worker", *words])
    assert done.exit_code == 2
    assert done.stderr.startswith("megads: pass the run folder, e.g. megads worker runs/7B; `")


def test_a_rank_by_hand_needs_a_prepared_folder(tmp_path, monkeypatch):
    for name in ("MEGADS_TOKEN", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(main, ["worker", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert str(tmp_path / "none") in done.stderr
    assert done.stderr.count("\n") == 1
