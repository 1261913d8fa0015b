"""The navigation of the site: the groups of the table in docs/README.md, so that a page is listed in one place."""

from __future__ import annotations

import posixpath
import re

INDEX = "docs/README.md"
_ROW = re.compile(r"^\|\s*(?P<task>[^|]*?)\s*\|\s*\[[^\]]*\]\((?P<link>[^)#]+)(?P<anchor>#[^)]*)?\)\s*\|")


def groups(index: str) -> dict[str, list[str]]:
    """Return task -> pages, as paths from the root of the repository, in the order of the table.

    A row without a task belongs to the task above it. Rows of a section, and of a page that an earlier row has, add
    nothing.

    Args:
        index: text of docs/README.md.
    """
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    task = ""
    for line in index.splitlines():
        row = _ROW.match(line)
        if not row:
            continue
        task = row["task"] or task
        page = posixpath.normpath(posixpath.join(posixpath.dirname(INDEX), row["link"]))
        if page not in seen and not row["anchor"]:
            found.setdefault(task, []).append(page)
            seen.add(page)
    return found


def pages(index: str) -> list[str]:
    """Return every page of the navigation, as a path from the root of the repository."""
    return [page for group in groups(index).values() for page in group]


def toctrees(index: str) -> str:
    """Return the navigation in MyST's words, to be read behind the text of the first page."""
    blocks = [("", [INDEX]), *groups(index).items()]
    return "\n".join(
        "\n".join(["", "```{toctree}", ":hidden:", *([f":caption: {task}"] if task else []), "", *names, "```"])
        for task, group in blocks
        for names in [[page.removesuffix(".md") for page in group]]
    )
