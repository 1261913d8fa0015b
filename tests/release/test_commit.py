"""The commit of this copy."""

from __future__ import annotations

import re
import subprocess

from megads.release.commit import STAMP, commit, own_commit


def test_a_changed_checkout_is_marked(tmp_path):
    assert commit(tmp_path) == "?"

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    clean = commit(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{10}", clean)
    (tmp_path / "a").write_text("2")
    assert commit(tmp_path) == f"{clean}+"
    (tmp_path / "environment").mkdir()
    assert commit(tmp_path / "environment") == "?"


def test_a_stamp_comes_before_what_git_says(tmp_path):
    folder = tmp_path / "megads" / "release"
    folder.mkdir(parents=True)
    assert own_commit(folder) == "?"
    (folder / STAMP).write_text("0123456789\n")
    assert own_commit(folder) == "0123456789"
