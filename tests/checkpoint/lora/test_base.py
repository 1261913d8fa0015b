"""The base of adapters is found where it was or is named, and only as it was."""

from __future__ import annotations

import shutil

import pytest

from megads.checkpoint.lora.base import base_of, fingerprint, is_adapters
from megads.errors import CheckpointError
from tests.checkpoint.lora.made import make_both


def test_the_base_is_where_it_was(tmp_path):
    adapters, base, _ = make_both(tmp_path)
    assert is_adapters(adapters.manifest)
    assert not is_adapters(base.manifest)
    assert base_of(adapters.path, adapters.manifest).path == base.path


@pytest.mark.parametrize("load", ["copy", "copy/iter_0000007"])
def test_a_copy_that_is_named_takes_its_place(tmp_path, load):
    adapters, base, _ = make_both(tmp_path)
    shutil.copytree(base.path.parent, tmp_path / "copy")
    shutil.rmtree(base.path)
    with pytest.raises(
        CheckpointError, match=r"its base, .*base/iter_0000007 is not there; restore it, or name a copy"
    ):
        base_of(adapters.path, adapters.manifest)
    assert base_of(adapters.path, adapters.manifest, str(tmp_path / load)).path == tmp_path / "copy/iter_0000007"


def test_another_checkpoint_that_is_named_is_not_taken(tmp_path):
    adapters, base, _ = make_both(tmp_path)
    other = make_both(tmp_path / "other", degree=1)[1]
    assert base_of(adapters.path, adapters.manifest, str(other.path)).path == base.path


def test_a_base_that_changed_is_refused(tmp_path):
    adapters, base, _ = make_both(tmp_path)
    was = fingerprint(base.path)
    manifest = base.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"iteration"', '"iteration" '))
    with pytest.raises(CheckpointError, match=f"has another content than .*, then {was}"):
        base_of(adapters.path, adapters.manifest)


def test_adapters_that_name_no_base_are_refused(tmp_path):
    adapters, base, _ = make_both(tmp_path)
    with pytest.raises(CheckpointError, match="does not name the checkpoint"):
        base_of(adapters.path, base.manifest)
