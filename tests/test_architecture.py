"""docs/architecture.md is true: its files, functions, tables, and the length of the path to a step."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()
REFERENCE = re.compile(r"`([\w./-]+\.(?:py|sh|md))(?:: ([\w., ]+))?`")
"""`file` or `file: function, Class.method`."""

SLACK = 50
"""Lines that the path may be shorter than the page says."""


def referred(text: str) -> list[tuple[str, list[str]]]:
    """Return every file that ``text`` refers to, with the functions and classes after its name."""
    return [(path, names.split(", ") if names else []) for path, names in REFERENCE.findall(text)]


def steps() -> list[tuple[str, list[str]]]:
    """Return file and functions of every step of the path."""
    found = re.findall(r"^(\d+)\. (`[^`]+`)", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in found] == [*range(1, len(found) + 1)]
    return [referred(reference)[0] for _, reference in found]


def lines_of(path: Path) -> dict[str, int]:
    """Return every function, class and method that ``path`` defines, with its number of lines."""
    if path.suffix == ".sh":
        lines = path.read_text().splitlines()
        starts = {match[1]: at for at, line in enumerate(lines) if (match := re.search(r"(\w+)\(\) \{", line))}
        return {name: lines.index("}", at) - at + 1 for name, at in starts.items() if "}" in lines[at:]}
    found: dict[str, int] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                found[prefix + node.name] = (node.end_lineno or first) - first + 1
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{node.name}.")

    visit(ast.parse(path.read_text()).body, "")
    return found


def folder_rows() -> dict[str, tuple[int, str]]:
    """Return layer and torch column of every row of the folder table."""
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .* \| ([^|]+) \|$", PAGE, re.MULTILINE)
    return {folder: (int(layer), torch) for layer, folder, torch in rows}


def contract(name: str, key: str) -> list[str]:
    """Return the lines of a contract of import-linter in setup.cfg."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    return settings[f"importlinter:contract:{name}"][key].split("\n")[1:]


def test_every_file_exists_and_defines_the_functions_named():
    missing = [
        f"{path}: {name}"
        for path, names in referred(PAGE)
        for name in (names or [""])
        if not (ROOT / path).is_file() or (name and name not in lines_of(ROOT / path))
    ]
    assert not missing, "\n".join(missing)
    assert len(referred(PAGE)) > 40


def test_every_folder_is_in_the_table():
    there = {path.parent.name for path in (ROOT / "megads").glob("*/__init__.py")} | {"errors"}
    assert folder_rows().keys() == there


def test_the_layers_are_those_of_the_import_contract():
    layers = contract("layers", "layers")
    expected = {
        folder.strip().removeprefix("megads."): number
        for number, line in enumerate(layers, 1)
        for folder in line.split("|")
    }
    assert {folder: layer for folder, (layer, _) in folder_rows().items()} == expected


def test_the_torch_column_is_that_of_the_import_contract():
    free = {name.removeprefix("megads.") for name in contract("no-torch", "source_modules")}
    expected = dict.fromkeys(free - {"data"}, "no") | {"errors": "no", "data": "only in `loading`"}
    assert "megads.data.loading.* -> torch" in contract("no-torch", "ignore_imports")
    shown = {folder: torch for folder, (_, torch) in folder_rows().items()}
    without = {folder: torch for folder, torch in shown.items() if torch == "no" or folder == "data"}
    assert without == {name: value for name, value in expected.items() if "." not in name}
    for folder, torch in shown.items():
        if torch.startswith("not in "):
            assert {f"{folder}.{each}" for each in re.findall(r"`(\w+)`", torch)} <= free
    assert "torch" not in (ROOT / "megads/errors.py").read_text()


def test_vendors_are_named_in_their_folder_only():
    """The rule of the page that no import contract can check."""
    names = [
        path.relative_to(ROOT / "megads").parts[0]
        for path in (ROOT / "megads").rglob("*.py")
        if re.search(r"\btorch\.(cuda|xpu)\b", path.read_text())
    ]
    assert set(names) == {"device"}


def test_every_step_is_reached_from_an_earlier_one():
    """An earlier step, or what it calls, has the step's file in a script, or its module in Python."""
    called = [path for path, _ in referred("".join(re.findall(r"^\|.*\|$", PAGE, re.MULTILINE)))]
    path_of_steps = [path for path, _ in steps()]
    for at, path in enumerate(path_of_steps[1:], 1):
        module = path.removesuffix(".py").removesuffix("/__init__").removesuffix("/__main__").replace("/", ".")
        word = re.escape(path) if path.endswith(".sh") else rf'(-m |from |"){re.escape(module)}[ ",]'
        assert any(re.search(word, (ROOT / each).read_text()) for each in (*path_of_steps[:at], *called)), path


def test_the_path_is_as_short_as_the_page_says():
    """It may only get shorter: who adds lines to the path removes others, instead of raising the page's number."""
    said = re.search(r"has (\d+) files and (\d+) lines\. The functions named are (\d+) of these", PAGE)
    assert said
    lengths = [len((ROOT / path).read_text().splitlines()) for path, _ in steps()]
    named = 0
    for (path, names), length in zip(steps(), lengths, strict=True):
        sizes = lines_of(ROOT / path)
        named += sum(sizes[name] for name in names) if names else length
    assert len({path for path, _ in steps()}) == len(lengths)
    for what, is_now, limit, slack in zip(
        ("files", "lines", "lines of functions"),
        (len(lengths), sum(lengths), named),
        map(int, said.groups()),
        (0, SLACK, SLACK),
        strict=True,
    ):
        assert is_now <= limit, f"the path has {is_now} {what}, more than the {limit} of the page; shorten it"
        assert is_now >= limit - slack, f"the path has {is_now} {what} now; write that instead of {limit} into the page"
