"""tests/ mirrors megads/: the tests of a module are in the file of its name, in the same folder."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARE = 0.9


def test_nine_of_ten_modules_have_a_test_file_of_their_name():
    modules = [path.relative_to(ROOT / "megads") for path in (ROOT / "megads").rglob("*.py")]
    modules = [path for path in modules if not path.name.startswith("__")]
    missing = [
        str(path)
        for path in modules
        if not (ROOT / "tests" / path.parent / f"test_{path.stem.strip('_')}.py").is_file()
    ]
    assert len(modules) > 300
    share = 1 - len(missing) / len(modules)
    assert share >= SHARE, f"{share:.0%} of {len(modules)} modules; without a test file: {', '.join(missing)}"
