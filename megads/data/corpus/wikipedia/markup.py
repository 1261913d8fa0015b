"""The text of a page's markup, parsed by mwparserfromhell."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from megads.errors import DependencyError

_DROPPED = frozenset(
    [
        *("ref", "references", "table", "gallery", "math", "chem", "score", "timeline", "imagemap", "inputbox"),
        *("categorytree", "graph", "mapframe", "maplink", "templatestyles", "templatedata", "syntaxhighlight"),
        *("source", "section", "indicator", "noinclude", "style", "script"),
    ]
)
"""Tags whose content is no running text."""

_BREAKS = frozenset({"br", "p", "div", "li", "dt", "dd", "hr", "blockquote", "poem", "pre", "tr", "ul", "ol", "center"})
_BLANKS = re.compile(r"[ \t\u00a0]+")
_EMPTY = re.compile(r"\(\s*[,;:]*\s*\)")  # what a template leaves of its parentheses
_STYLE = re.compile("'{2,}")
_MAGIC = re.compile(r"__[A-Z]+__")
_HEADING = "\x00"  # begins a line that is a heading; XML has no such character


class CannotParse(Exception):
    """Markup that the library cannot parse."""


def text_of(markup: str, hidden: Collection[str]) -> str:
    """Return the text of a page: paragraphs and headings, each on a line.

    Templates, references, tables, formulas, files and categories are removed, and headings without any
    text below them.

    Args:
        markup: wikitext.
        hidden: names, in lower case, of the namespaces of files and categories.

    Raises:
        CannotParse: the library gives up.
    """
    library = load_library()
    try:
        # The library's own parser of apostrophes tries every way to pair them.
        tree = library.parse(markup, skip_style_tags=True)
        text = _flat(tree, hidden)
    except (library.parser.ParserError, RecursionError) as error:
        raise CannotParse(str(error) or type(error).__name__) from None
    return "\n".join(_lines(text))


def _flat(tree: Any, hidden: Collection[str]) -> str:
    return "".join(_text(node, hidden) for node in tree.nodes)


def _text(node: Any, hidden: Collection[str]) -> str:
    kind = type(node).__name__
    if kind == "Text":
        return _STYLE.sub(_apostrophes, str(node.value))
    if kind == "Wikilink":
        return _link(node, hidden)
    if kind == "ExternalLink":
        return _flat(node.title, hidden) if node.title is not None else "" if node.brackets else str(node.url)
    if kind == "HTMLEntity":
        return str(node.normalize())
    if kind == "Heading":
        title = " ".join(_flat(node.title, hidden).split())
        return f"\n{_HEADING * node.level}{title}\n"
    if kind == "Tag":
        return _tag(node, hidden)
    return ""  # templates, their arguments, comments


def _apostrophes(found: re.Match[str]) -> str:
    """Return what is text of apostrophes in a row: two are italics, three bold, five both."""
    count = len(found.group())
    return "'" * (1 if count == 4 else max(0, count - 5))


def _link(node: Any, hidden: Collection[str]) -> str:
    title = str(node.title).strip()
    space, colon, _ = title.partition(":")
    if colon and space.strip().replace("_", " ").lower() in hidden:
        return ""
    return _flat(node.text, hidden) if node.text is not None else title.removeprefix(":")


def _tag(node: Any, hidden: Collection[str]) -> str:
    name = str(node.tag).strip().lower()
    if name in _DROPPED:
        return ""
    content = "" if node.contents is None else _flat(node.contents, hidden)
    return f"\n{content}\n" if name in _BREAKS and not node.wiki_markup else content


def _lines(text: str) -> list[str]:
    """Return the lines that are not blank, without headings that nothing follows."""
    kept: list[str] = []
    waiting: list[tuple[int, str]] = []  # headings that nothing follows yet: level, title
    for line in _MAGIC.sub("", _EMPTY.sub("", text)).split("\n"):
        level = len(line) - len(line.lstrip(_HEADING))
        line = _BLANKS.sub(" ", line[level:]).strip()
        if level:
            waiting = [each for each in waiting if each[0] < level]
            waiting.append((level, line))
        elif line:
            kept += [title for _, title in waiting if title]
            kept.append(line)
            waiting = []
    return kept


def load_library() -> Any:
    """Return the library; DependencyError where it is missing."""
    try:
        import mwparserfromhell
    except ImportError:
        raise DependencyError(
            "megads corpus wikipedia needs mwparserfromhell, which is not installed; pip install -e '.[corpus]'"
        ) from None
    return mwparserfromhell
