"""Pages of a dump, and dumps that are none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from megads.data.corpus.wikipedia import pages
from megads.data.corpus.wikipedia.pages import Dump, Page
from megads.errors import DataError
from tests.data.corpus.wikipedia.made import HEAD, dump, page

PAGES = [
    page(1, "A & <B>", "text \u20ac & more\n" * 50),
    page(2, "C", "", redirect='to "D"'),
    page(3, "Datei:x", "y", namespace=6),
]
TITLE = "  <page><title>t</title><ns>0</ns><id>1</id>"


def cut(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_pages_come_in_order_for_any_pieces(size):
    found = Dump("x.xml", cut(dump(PAGES), size))
    assert list(found.pages()) == [
        Page("1", "A & <B>", 0, False, "text \u20ac & more\n" * 50),
        Page("2", "C", 0, True, ""),
        Page("3", "Datei:x", 6, False, "y"),
    ]
    assert found.site.url("1") == "https://de.wikipedia.org/wiki?curid=1"
    assert found.site.hidden == {"file", "image", "media", "category", "datei", "kategorie"}


def test_of_several_revisions_the_last_one_counts():
    both = page(1, "A", "old").replace("</revision>", "</revision><revision><id>9</id><text>new</text></revision>")
    assert [each.markup for each in Dump("x", [dump([both])]).pages()] == ["new"]


def test_a_page_is_given_before_the_next_piece_is_read():
    read = 0

    def pieces() -> Iterator[bytes]:
        nonlocal read
        for each in (HEAD, *PAGES, "</mediawiki>"):
            read += 1
            yield each.encode()

    next(Dump("x", pieces()).pages())
    assert read == 2


BOMB = '<?xml version="1.0"?>\n<!DOCTYPE m [<!ENTITY a "b"><!ENTITY c "&a;&a;">]>\n<mediawiki>&c;</mediawiki>'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1, byte 0: is not well-formed XML (no element found); download the dump again"),
        ("no XML", "line 1, byte 0: is not well-formed XML (syntax error)"),
        ("<html></html>", "line 1, byte 0: begins with <html>; expected <mediawiki>, as in pages-articles.xml"),
        (BOMB, "line 2, byte "),
        ('<!DOCTYPE m SYSTEM "file:///etc/passwd"><mediawiki/>', "line 1, byte "),
        (HEAD, f"line {HEAD.count(chr(10)) + 1}, byte {len(HEAD)}: is not well-formed XML (no element found)"),
        (HEAD + "<page></title>", "line 12, byte "),
        (HEAD + "<page>\x01", "line 12, byte "),
        (HEAD + "<page>&nbsp;", "line 12, byte "),
        ("<mediawiki><page><title>t</title><ns>0</ns></page>", "line 1, byte 43: a page has no <id>"),
        ("<mediawiki><page><id>1</id><ns>0</ns></page>", "line 1, byte 37: a page has no <title>"),
        (f"<mediawiki>{TITLE}<ns>x</ns></page>", "line 1, byte 65: namespace 'x' is not a number"),
        (HEAD + "</mediawiki><page/>", "line 12, byte "),
    ],
)
def test_a_dump_that_is_none_is_refused_with_the_place(content, message):
    with pytest.raises(DataError) as caught:
        list(Dump("x.xml", cut(content.encode(), 50)).pages())
    assert str(caught.value).startswith(f"x.xml: {message}"), caught.value


def test_bytes_that_are_not_utf8_are_refused():
    data = dump(PAGES).replace("\u20ac".encode(), b"\xff", 1)
    with pytest.raises(DataError, match=f"byte {data.index(0xFF)}: is not well-formed XML"):
        list(Dump("x.xml", [data]).pages())


def test_a_document_type_is_refused_by_name():
    with pytest.raises(DataError, match="declares a document type, whose entities may grow without bound"):
        list(Dump("x.xml", [BOMB.encode()]).pages())


def test_a_page_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(pages, "LONGEST", 10_000)
    start = (HEAD + TITLE + "<revision><text>").encode()
    endless = (b"word\n" * 1000 for _ in iter(int, 1))
    with pytest.raises(DataError, match=r"<text> has more than 9\.77 KiB"):
        list(Dump("x.xml", (piece for source in ([start], endless) for piece in source)).pages())
