"""A small dump in the layout of MediaWiki's exports."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <base>https://de.wikipedia.org/wiki/Hauptseite</base>
    <case>first-letter</case>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""


def page(number: int, title: str, markup: str, *, namespace: int = 0, redirect: str = "") -> str:
    """Return a page."""
    target = f"    <redirect title={quoteattr(redirect)} />\n" if redirect else ""
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>\n{target}"
        f"    <revision>\n      <id>{number + 1000}</id>\n      <contributor><username>u</username><id>7</id>"
        f'</contributor>\n      <text bytes="{len(markup)}" xml:space="preserve">{escape(markup)}</text>\n'
        "    </revision>\n  </page>\n"
    )


def dump(pages: Sequence[str]) -> bytes:
    """Return a dump of pages."""
    return (HEAD + "".join(pages) + "</mediawiki>\n").encode()
