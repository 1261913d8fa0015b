"""``megads retro validate``."""

from __future__ import annotations

import h5py

from tests.cli.retro.test_steps import call, words
from tests.retro.corpus import make_corpus


def test_damage_is_found_and_mended(tmp_path, capsys):
    folder = tmp_path / "p"
    call(capsys, "build", *words(make_corpus(tmp_path / "c"), folder))
    args = ("validate", "--retro-project-dir", folder, "--retro-task-validate", "1.0", "--seed", 3, "--workers", 1)
    code, out, _ = call(capsys, *args)
    assert (code, out) == (0, f"{folder}: 26 files recomputed, no difference (--seed 3)\n")
    path = min((folder / "db" / "individual" / "b").iterdir())
    before = path.read_bytes()
    with h5py.File(path, "a") as file:
        file["chunks_valid"][2, 3] += 1
        del file["chunks_valid"].attrs["megads_crc32"]
    code, out, err = call(capsys, *args)
    assert (code, out) == (2, "")
    assert f"megads: {path}: chunks_valid is not what is computed now\n" in err
    code, out, _ = call(capsys, *args, "--repair")
    assert (code, "built again (--seed 3)" in out) == (0, True)
    assert path.read_bytes() == before
    assert call(capsys, *args)[0] == 0


def test_a_share_that_is_none_is_one_line(tmp_path, capsys):
    for share in ("0", "1.5", "x"):
        code, _, err = call(capsys, "validate", "--retro-project-dir", tmp_path, "--share", share)
        assert (code, err.count("\n")) == (2, 1)
