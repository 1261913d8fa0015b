"""Files that are not modules, in a checkout and as a wheel installs them (tests/release/test_wheel.py installs one)."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.storage import resources
from megads.storage.resources import files_root, is_shipped, packaged, pip_install

ROOT = Path(__file__).resolve().parents[2]


def test_a_checkout_is_its_own_root():
    assert files_root({}) == ROOT
    assert packaged("envs/machines.txt") == ROOT / "envs/machines.txt"
    assert not is_shipped(ROOT)
    assert pip_install("torch") == "pip install -c envs/constraints.txt torch"


def test_the_variable_comes_first_for_the_machines_and_not_for_the_files_of_this_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("MEGADS_ROOT", str(tmp_path))
    assert files_root({"MEGADS_ROOT": str(tmp_path)}) == tmp_path
    assert packaged("envs") == ROOT / "envs"


def test_an_installed_copy_has_its_files_next_to_the_modules(tmp_path, monkeypatch):
    shipped = tmp_path / "site-packages/megads/shipped"
    (shipped / "envs").mkdir(parents=True)
    monkeypatch.setattr(resources, "SHIPPED", shipped)
    assert files_root({}) == shipped
    assert packaged("envs") == shipped / "envs"
    assert pip_install("torch") == f"pip install -c {shipped}/envs/constraints.txt torch"
    (tmp_path / "link").symlink_to(shipped)
    assert is_shipped(tmp_path / "link")


def test_a_file_that_is_not_shipped_is_named():
    with pytest.raises(FileNotFoundError, match=r"not a file of megads.*envs/none\.txt"):
        packaged("envs/none.txt")
