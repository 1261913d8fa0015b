"""The documentation as web pages: built strictly, complete, and usable without a network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

from docs.site.__main__ import problem
from docs.site.navigation import INDEX, groups, pages, toctrees
from tests.browser import browse

ROOT = Path(__file__).parents[2]
# What a browser fetches by itself, by the attribute that names it.
FETCHED = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "use": "href",
}


def build(folder, cwd=ROOT):
    words = [sys.executable, "-m", "docs.site", str(folder)]
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site of all pages; a warning fails its build."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{folder}/index.html\n"
    return folder


class Page(HTMLParser):
    """The names of places in a page, its links, and what is fetched with it."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.fetched = set(), [], []
        self.feed(path.read_text(encoding="utf8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.update(filter(None, (found.get("id"), found.get("name"))))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in FETCHED and found.get(FETCHED[tag]):
            self.fetched.append(found[FETCHED[tag]])


@pytest.fixture(scope="module")
def html(site):
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def broken(html, site):
    """Yield each link and each file that leads nowhere inside the site."""
    for path, page in html.items():
        for link in [*page.links, *page.fetched]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file() or not target.is_relative_to(site.resolve()):
                yield f"{path.relative_to(site)}: {link}"
            elif parts.fragment and target in html and unquote(parts.fragment) not in html[target].ids:
                yield f"{path.relative_to(site)}: no #{parts.fragment} in {parts.path or 'it'}"


def test_every_page_is_there_and_in_the_navigation_of_every_other(site, html):
    index = (ROOT / INDEX).read_text()
    assert set(pages(index)) >= {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} - {INDEX}
    assert (site / "index.html").read_bytes() == (site / "README.html").read_bytes()
    shown = set()
    for name in ("docs/running.html", "docs/data.html"):  # the link to itself is "#"
        links = [urlsplit(link).path for link in html[site / name].links]
        shown |= {((site / name).parent / link).resolve() for link in links}
    for name in [*pages(index), INDEX, "README.md"]:
        assert (site / name).with_suffix(".html").resolve() in shown, name
    text = (site / "docs/running.html").read_text()
    assert re.findall(r'<span class="caption-text">([^<]*)</span>', text) == list(groups(index))


def test_no_link_and_no_anchor_is_broken(site, html):
    assert sum(len(page.links) for page in html.values()) > 2000
    found = list(broken(html, site))
    assert not found, "\n".join(found)


def test_nothing_is_fetched_from_elsewhere(site, html):
    for path, page in html.items():
        assert page.fetched, path
        outside = [link for link in page.fetched if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc]
        assert not outside, f"{path}: {outside}"
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\(\s*['\"]?(?:https?:)?//[^)]*|@import[^;]*", styles) == []


def asked_by_page(address, folder):
    """Open a page; return its content after its scripts, and the addresses that it asked the network for.

    The browser's own requests have no page as their initiator.
    """
    log = folder / "net.json"
    shown = browse(address, folder, "--dump-dom", f"--log-net-log={log}")
    events = [event.get("params") for event in json.loads(log.read_text())["events"]]
    starts = [each for each in events if isinstance(each, dict) and "url" in each]
    return shown, {each["url"] for each in starts if each.get("initiator", "not an origin") != "not an origin"}


def test_search_finds_a_page_without_a_server_and_asks_no_network(site, tmp_path):
    shown, asked = asked_by_page(f"{(site / 'search.html').as_uri()}?q=reshard", tmp_path)
    assert re.search(r"Search finished, found \d+ page", shown)
    assert re.search(r'<a href="docs/checkpoints\.html[^"]*"', shown)
    assert asked == set()


def test_a_page_that_asks_the_network_is_seen(tmp_path):
    (tmp_path / "x.html").write_text('<img src="http://fonts.invalid/x.png">')
    assert asked_by_page(tmp_path / "x.html", tmp_path)[1] == {"http://fonts.invalid/x.png"}


def test_no_page_has_text_that_is_taken_for_a_tag():
    """``<name>`` outside of code is HTML, and nobody sees it."""
    parser = MarkdownIt("commonmark").enable("table")
    for name in ["README.md", INDEX, *pages((ROOT / INDEX).read_text())]:
        tokens = parser.parse((ROOT / name).read_text())
        inside = [each for token in tokens for each in [token, *(token.children or ())]]
        tags = [each.content for each in inside if each.type.startswith("html_")]
        assert not [tag for tag in tags if not tag.startswith("<!--")], name


def test_the_navigation_is_the_table_of_the_index():
    index = (
        "| task | page | covers |\n|---|---|---|\n| Train | [running.md](running.md) | x |\n"
        "| | [lists](../data-lists/README.md) | x |\n| Fix | [damage](running.md#failures) | x |\n"
        "| | [running.md](running.md) | again |\n| Extend | [site](site/README.md) | x |\n"
    )
    assert groups(index) == {
        "Train": ["docs/running.md", "data-lists/README.md"],
        "Extend": ["docs/site/README.md"],
    }
    assert ":caption: Train\n\ndocs/running\ndata-lists/README\n" in toctrees(index)


@pytest.fixture
def small(tmp_path):
    """A repository of two pages, which builds in a second or two."""
    shutil.copytree(ROOT / "docs/site", tmp_path / "docs/site", ignore=shutil.ignore_patterns("__pycache__", "*.md"))
    (tmp_path / "README.md").write_text("# Small\n\n[all](docs/README.md)\n")
    (tmp_path / "docs/README.md").write_text("# Docs\n\n| Use | [a.md](a.md) | all |\n")
    (tmp_path / "docs/a.md").write_text("# A\n\n[b](#part)\n\n## Part\n\nx\n")
    return tmp_path


def test_a_wrong_page_fails_and_leaves_the_folder_as_it_was(small):
    folder = small / "out"
    assert build(folder, small).returncode == 0
    before = (folder / "docs/a.html").read_bytes()
    (small / "docs/a.md").write_text("# A\n\n[b](#party) [c](c.md)\n\n## Part\n\nx\n")
    (small / "docs/lost.md").write_text("# Lost\n")
    done = build(folder, small)
    assert done.returncode == 1
    assert "cross-reference target not found: 'party'" in done.stderr
    assert "cross-reference target not found: 'c.md'" in done.stderr
    assert re.search(r"lost\.md: WARNING: document isn't included in any toctree", done.stderr)
    assert (folder / "docs/a.html").read_bytes() == before
    assert {path.name for path in small.iterdir()} == {"README.md", "docs", "out"}


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    done = build(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"docs.site: {tmp_path} has files that are not a site's; pass a folder that is new or has an older site\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert problem(tmp_path / "thesis.tex").endswith("is not a folder; pass a folder that is new or has an older site")
    assert problem(tmp_path / "new") == ""


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "furo" else name)
    assert problem(tmp_path) == ("package furo not installed; run: pip install -c envs/constraints.txt -e '.[docs]'")
