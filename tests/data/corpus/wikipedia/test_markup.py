"""The text of wikitext."""

from __future__ import annotations

import contextlib
import sys

import pytest

from megads.data.corpus.wikipedia import markup
from megads.data.corpus.wikipedia.markup import CannotParse, text_of
from megads.errors import DependencyError

HIDDEN = {"file", "image", "category", "datei"}

CASES = {
    "templates": ("a{{cite|x=[[y]]|{{z}}}} b", "a b"),
    "an infobox": ("{{Infobox\n| name = x\n}}\nText", "Text"),
    "references": ('a<ref name="x">see {{y}}</ref> b<ref name="x" />.', "a b."),
    "a table": ('a\n{| class="wikitable"\n|-\n! x\n| y\n|}\nb', "a\nb"),
    "a file with links in its caption": ("[[File:x.jpg|thumb|a [[b]] c]]Text", "Text"),
    "a localised file": ("[[Datei:x.jpg|mini]]Text[[Category:Y]]", "Text"),
    "links": ("[[a]], [[a|b]], [[:Category:c]], [[a|''d'']]s", "a, b, Category:c, ds"),
    "outer links": ("[http://x.org the page] [http://x.org] http://y.org", "the page http://y.org"),
    "styles": ("'''bold''' ''it'' <b>b</b> <span style='x'>s</span>", "bold it b s"),
    "styles in a row": ("'''''a''''' ''''b''' [[c]]''''''", "a 'b c'"),
    "an apostrophe": ("the dogs' ''tail''", "the dogs' tail"),
    "entities": ("a&nbsp;b &amp; &#8364; &lt;i&gt;", "a b & \u20ac <i>"),
    "comments": ("a<!-- b -->c", "ac"),
    "formulas": ("x <math>\\frac{1}{2}</math> y", "x y"),
    "lists": ("* one\n** two\n# three\n; term : text", "one\ntwo\nthree\nterm text"),
    "breaks": ("a<br>b<br />c", "a\nb\nc"),
    "parentheses of a template": ("Name ({{lang|x}}, ) is", "Name is"),
    "magic words": ("__NOTOC__a", "a"),
    "headings": ("a\n== B ==\nc\n=== D ===\ne", "a\nB\nc\nD\ne"),
    "empty sections": ("a\n== B ==\n=== C ===\n== D ==\ne\n== F ==\n{{reflist}}", "a\nD\ne"),
    "a parent of a section with text": ("== B ==\n=== C ===\nd", "B\nC\nd"),
    "nothing": ("{{x}}", ""),
    "broken markup": ("a {{b [[c ''d", "a {{b [[c d"),
    "nowiki": ("<nowiki>[[a]]</nowiki>", "[[a]]"),
}


@pytest.mark.parametrize("name", CASES)
def test_text_of(name):
    given, wanted = CASES[name]
    assert text_of(given, HIDDEN) == wanted


def test_deep_nesting_is_text_or_a_reason_and_no_crash():
    for given in ("{{" * 3000, "[[" * 3000 + "]]" * 3000, "<b>" * 3000, "{{a|" * 500 + "}}" * 500, "''" * 2001):
        with contextlib.suppress(CannotParse):
            text_of(given, HIDDEN)


def test_what_the_library_gives_up_on_is_an_error_of_its_own(monkeypatch):
    def fail(*_, **__):
        raise RecursionError

    library = markup.load_library()
    monkeypatch.setattr(library, "parse", fail)
    with pytest.raises(CannotParse, match="RecursionError"):
        text_of("a", HIDDEN)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mwparserfromhell", None)
    with pytest.raises(DependencyError, match=r"wikipedia needs mwparserfromhell.*pip install -e '\.\[corpus\]'"):
        text_of("a", HIDDEN)
