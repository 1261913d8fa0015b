"""The pages of a MediaWiki dump, one by one, in bounded memory."""

from __future__ import annotations

import xml.parsers.expat
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from megads.errors import DataError
from megads.text.units import size as size_text

LONGEST = 64 << 20
"""Bytes of text of one page, at most. MediaWiki's own limit is 2 MiB."""

_KEPT = frozenset({"title", "ns", "id", "text"})
_FILE, _CATEGORY = 6, 14  # numbers of namespaces


@dataclass(frozen=True)
class Page:
    """One page of a dump, of its last revision in the file."""

    id: str
    title: str
    namespace: int
    is_redirect: bool
    markup: str


@dataclass
class Site:
    """What a dump says about its wiki before the first page."""

    base: str = ""  # URL of the main page
    hidden: set[str] = field(default_factory=lambda: {"file", "image", "media", "category"})
    """Names, in lower case, of the namespaces of which a link shows a picture or a category."""

    def url(self, page: str) -> str:
        """Return the address of the page with an id."""
        return f"{self.base.rpartition('/')[0]}?curid={page}"


class Dump:
    """A dump, read from pieces of its XML text."""

    def __init__(self, path: str, pieces: Iterable[bytes]):
        self.site = Site()
        self._path, self._pieces = path, pieces
        self._pages: deque[Page] = deque()
        self._stack: list[str] = []
        self._text: list[str] = []
        self._size = 0
        self._page: dict[str, str] = {}
        self._is_redirect = False
        self._key = ""  # number of the namespace that is being read
        self._parser = parser = xml.parsers.expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._add
        parser.StartDoctypeDeclHandler = self._refuse

    def pages(self) -> Iterator[Page]:
        """Yield the pages in order.

        Raises:
            DataError: the XML is broken or cut off, not a dump, declares a document type, or a page is too long.
        """
        for piece in self._pieces:
            self._feed(piece, False)
            while self._pages:
                yield self._pages.popleft()
        self._feed(b"", True)

    def _feed(self, piece: bytes, is_last: bool) -> None:
        try:
            self._parser.Parse(piece, is_last)
        except xml.parsers.expat.ExpatError as error:
            reason = xml.parsers.expat.errors.messages[error.code]
            raise self._wrong(f"is not well-formed XML ({reason}); download the dump again") from None

    def _wrong(self, reason: str) -> DataError:
        parser = self._parser
        at = max(0, parser.CurrentByteIndex, parser.ErrorByteIndex)
        return DataError(f"{self._path}: line {parser.CurrentLineNumber}, byte {at}: {reason}")

    def _refuse(self, *_: object) -> None:
        raise self._wrong("declares a document type, whose entities may grow without bound; a dump has none")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        stack = self._stack
        if not stack and name != "mediawiki":
            raise self._wrong(f"begins with <{name}>; expected <mediawiki>, as in pages-articles.xml")
        stack.append(name)
        self._text, self._size = [], 0
        if name == "page":
            self._page, self._is_redirect = {}, False
        elif name == "redirect":
            self._is_redirect = True
        elif name == "namespace":
            self._key = attributes.get("key", "")

    def _add(self, text: str) -> None:
        self._text.append(text)
        self._size += len(text)
        if self._size > LONGEST:
            raise self._wrong(f"<{self._stack[-1]}> has more than {size_text(LONGEST)}; is this a dump of MediaWiki?")

    def _end(self, name: str) -> None:
        stack = self._stack
        stack.pop()
        parent = stack[-1] if stack else ""
        if parent == "page" and name in _KEPT:
            self._page[name] = "".join(self._text)
        elif parent == "revision" and name == "text":
            self._page["text"] = "".join(self._text)
        elif parent == "siteinfo" and name == "base":
            self.site.base = "".join(self._text).strip()
        elif parent == "namespaces" and self._key in (str(_FILE), str(_CATEGORY)):
            self.site.hidden.add("".join(self._text).strip().lower())
        elif name == "page":
            self._finish()
        self._text, self._size = [], 0

    def _finish(self) -> None:
        page = self._page
        missing = [name for name in ("title", "id") if not page.get(name, "").strip()]
        if missing:
            raise self._wrong(f"a page has no <{missing[0]}>")
        number = page.get("ns", "0").strip()
        if not number.lstrip("-").isascii() or not number.lstrip("-").isdigit():
            raise self._wrong(f"namespace {number[:20]!r} is not a number")
        title, markup = page["title"], page.get("text", "")
        self._pages.append(Page(page["id"].strip(), title, int(number), self._is_redirect, markup))
