"""Help as Markdown, for pages that are written from declarations."""

from __future__ import annotations

import re

_CODE = re.compile(r"(`[^`]*`)")
_OPTION = re.compile(r"(?<![\w`/-])--[a-z][\w-]*")


def cell(says: str) -> str:
    """Return plain help as the text of a table's cell or of a paragraph.

    Quoted code stays. Elsewhere options become code, and letters that Markdown gives a meaning are escaped: ``<name>``
    would be a tag that nobody sees. Blanks are single ones.
    """
    parts = _CODE.split(" ".join(says.split()))
    parts[::2] = [_plain(part) for part in parts[::2]]
    return "".join(parts).replace("|", r"\|")


def _plain(text: str) -> str:
    parts = _CODE.split(_OPTION.sub(r"`\g<0>`", text))
    parts[::2] = [re.sub(r"<(?=[A-Za-z/!?])|[*\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", part) for part in parts[::2]]
    return "".join(parts)
