"""The public names, and the tables of pages that are made from the code."""

from __future__ import annotations

import configparser
import importlib
import inspect
from pathlib import Path

import pytest

from docs.site import tables
from docs.site.write import PAGES
from megads.release.api import PUBLIC

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_is_made_from_the_code_is_current(name):
    written = (DOCS / name).read_text()
    assert written == PAGES[name](written), "python -m docs.site.write"


def test_another_signature_changes_the_page(monkeypatch):
    """That is how a change of a public name is seen."""

    def list_checkpoints(folder, newest=False):
        """Return the checkpoints in ``folder``."""

    monkeypatch.setattr("megads.checkpoint.format.folders.list_checkpoints", list_checkpoints)
    written = (DOCS / "api.md").read_text()
    assert "def list_checkpoints(folder, newest=False)" in tables.page("api.md", written)


def test_a_page_without_marks_is_not_written():
    with pytest.raises(ValueError, match=r"api\.md lacks .*docs\.site\.write: formats"):
        tables.page("api.md", "# megads as a library\n")


def test_every_public_name_exists_and_is_documented():
    for module, names in PUBLIC.items():
        for name in names:
            member = getattr(importlib.import_module(module), name)
            assert not name.startswith("_")
            if inspect.isclass(member) or inspect.isroutine(member):
                assert member.__module__.startswith("megads."), name
                assert inspect.getdoc(member), name


def test_only_the_contract_of_engines_needs_torch():
    """import-linter checks that the others do not import it, directly or through another module."""
    config = configparser.ConfigParser()
    config.read(DOCS.parent / "setup.cfg")
    free = config["importlinter:contract:no-torch"]["source_modules"].split()
    need = [name for name in PUBLIC if not any(name == each or name.startswith(f"{each}.") for each in free)]
    assert need == ["megads.errors", "megads.engine.base"]
