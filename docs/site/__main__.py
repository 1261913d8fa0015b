"""Build the site: ``python -m docs.site [FOLDER]``; open FOLDER/index.html. Warnings are errors."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEFAULT = "build/site"
MARK = "searchindex.js"
"""A file that every site has: a folder without it is not overwritten."""
PACKAGES = {"sphinx": "sphinx", "myst_parser": "myst-parser", "furo": "furo"}


def problem(folder: Path) -> str:
    """Return why no site can be built in ``folder``, or ``""``."""
    for module, package in PACKAGES.items():
        if importlib.util.find_spec(module) is None:
            return f"package {package} not installed; run: pip install -c envs/constraints.txt -e '.[docs]'"
    if folder.exists() and not folder.is_dir():
        return f"{folder} is not a folder; pass a folder that is new or has an older site"
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARK).is_file():
        return f"{folder} has files that are not a site's; pass a folder that is new or has an older site"
    return ""


def build(folder: Path) -> int:
    """Build the site in ``folder``, in place of an older one; return Sphinx's exit code. A failure changes nothing."""
    from sphinx.cmd.build import build_main

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as work:
        site = Path(work) / "site"
        words = ["-b", "html", "-W", "--keep-going", "-q", "-d", f"{work}/doctrees", "-c", str(Path(__file__).parent)]
        code = build_main([*words, str(ROOT), str(site)])
        if code:
            return code
        shutil.copyfile(site / "README.html", site / "index.html")
        for extra in (".buildinfo", "objects.inv"):
            (site / extra).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(site, folder)
    return 0


def main(words: list[str]) -> int:
    """Build the site and return the exit code."""
    if len(words) > 1 or any(word.startswith("-") for word in words):
        sys.stderr.write(f"usage: python -m docs.site [FOLDER]   (default {DEFAULT})\n")
        return 2
    folder = Path(words[0] if words else ROOT / DEFAULT).absolute()
    if wrong := problem(folder):
        sys.stderr.write(f"docs.site: {wrong}\n")
        return 2
    code = build(folder)
    if code == 0:
        sys.stdout.write(f"{folder}/index.html\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
