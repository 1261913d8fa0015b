"""The diagrams of the documentation are what their data says now."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from docs.site.draw import DRAWINGS, FOLDER
from docs.site.drawings import checkpoint, life, ranks
from megads import errors

ROOT = Path(__file__).parents[2]


def words(name):
    return re.findall(r"<text[^>]*>([^<]*)</text>", (FOLDER / name).read_text())


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_diagram_is_current_and_shown(name):
    assert (FOLDER / name).read_text() == DRAWINGS[name](), "python -m docs.site.write"
    assert any(f"](diagrams/{name})" in page.read_text() for page in (ROOT / "docs").glob("*.md"))


def test_there_is_no_other_diagram():
    assert {path.name for path in FOLDER.iterdir()} == set(DRAWINGS)


def test_every_rank_is_drawn_once():
    drawn = [word for word in words("ranks.svg") if word.isdecimal()]
    assert sorted(map(int, drawn)) == list(range(ranks.GRID.world_size))


def test_every_key_of_a_manifest_is_named():
    keys = json.loads(checkpoint.manifest_of_tiny().dump()).keys()
    assert keys - {"crc32", "format"} == checkpoint.MEANS.keys()
    assert set(words("checkpoint.svg")) >= checkpoint.MEANS.keys()


def test_every_phase_that_a_rank_enters_is_drawn():
    """Phases are texts where they are entered: those of the code of megads.train."""
    entered = {life.SET_UP}
    for path in (ROOT / "megads/train").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "enter" and node.args:
                entered.update(each.value for each in node.args[:1] if isinstance(each, ast.Constant))
    assert entered == set(life.SAYS)
    assert set(words("life-of-a-run.svg")) >= entered


def test_every_exit_code_is_drawn():
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    drawn = {int(code) for word in words("life-of-a-run.svg") for code in re.findall(r"^exit (\d+)", word)}
    assert drawn == codes
