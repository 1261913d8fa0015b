"""Settings of Sphinx. The pages are those of the repository, unchanged; the navigation is docs/README.md's table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docs.site.navigation import INDEX, pages, toctrees
from megads import __version__

ROOT = Path(__file__).parents[2]
_INDEX_TEXT = (ROOT / INDEX).read_text(encoding="utf8")

project = "megads"
author = "The megads maintainers"
version = release = __version__
root_doc = "README"
include_patterns = ["README.md", "docs/*.md", *pages(_INDEX_TEXT)]
# Nothing below these is a page; they are named so that they are not searched either.
exclude_patterns = [".*", "build", "runs", "megads", "envs", "launchers", "ALCF", "**/__pycache__"]

extensions = ["myst_parser"]
myst_heading_anchors = 6  # GitHub's names of headings
smartquotes = False  # options are text: --dry-run
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure"]  # a "..." in what is not a whole program

html_theme = "furo"
html_title = f"megads {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_use_index = False
html_theme_options = {"navigation_with_keys": True}


def _read(app: Any, docname: str, source: list[str]) -> None:
    """Add the navigation behind the first page; mark the prompts of commands, so that copying skips them."""
    source[0] = re.sub(r"^```bash\n(?=\$ )", "```console\n", source[0], flags=re.MULTILINE)
    if docname == root_doc:
        source[0] += toctrees(_INDEX_TEXT)


def setup(app: Any) -> None:
    """Connect this file's functions."""
    app.connect("source-read", _read)
