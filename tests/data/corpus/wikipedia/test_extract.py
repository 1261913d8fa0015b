"""The command on a small dump: articles, counts, compressed parts, kills."""

from __future__ import annotations

import bz2
import gzip
import json
import random

import pytest

from megads.data.corpus.wikipedia.extract import Extraction
from megads.data.preprocess.input.files import look_at
from tests.data.corpus.conftest import Corpus
from tests.data.corpus.made import text
from tests.data.corpus.wikipedia.made import dump, page

FINE = ("--block-bytes", 2000, "--commit-seconds", 0, "--workers", 2)


def make(count: int) -> tuple[bytes, list[dict[str, str]]]:
    """Return a dump, and what comes out of it."""
    draw = random.Random(count)
    pages, wanted = [], []
    for number in range(1, count + 1):
        title, body = f"T\u00e9 & {number}", text(draw, draw.randint(1, 9))
        kind = number % 7
        if kind == 0:
            pages.append(page(number, title, "#REDIRECT [[x]]", redirect="x"))
        elif kind == 1:
            pages.append(page(number, f"Datei:{title}", body, namespace=6))
        elif kind == 2:
            pages.append(page(number, title, "{{only|a template}}"))
        else:
            pages.append(
                page(number, title, f"{{{{Infobox|x=y}}}}'''{title}''' [[Datei:a.jpg]]<ref>r</ref>\n== A ==\n{body}")
            )
            url = f"https://de.wikipedia.org/wiki?curid={number}"
            wanted.append({"id": str(number), "url": url, "title": title, "text": f"{title}\nA\n{body}"})
    return dump(pages), wanted


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_articles_for_any_number_of_workers(megads: Corpus, workers):
    data, wanted = make(100)
    (megads.folder / "wiki.xml").write_bytes(data)
    done = megads.made("wikipedia", "wiki.xml", "out", "--workers", workers, "--block-bytes", 3000)
    assert megads.lines("out") == [json.dumps(each, ensure_ascii=False) for each in wanted]
    assert done.out == f"out  # kept {len(wanted)} of 100 pages; dropped empty 15, namespace 15, redirect 14\n"
    assert megads.report("out") == {
        "command": "wikipedia",
        "input": {"path": "wiki.xml", "bytes": len(data)},
        "output": "out",
        "options": {"min_length": 0},
        "pages": {"read": 100, "kept": len(wanted), "dropped": 44},
        "reasons": {"empty": 15, "namespace": 15, "redirect": 14},
        "bytes": {
            "read": megads.report("out")["bytes"]["read"],
            "written": (megads.folder / "out").stat().st_size,
        },
    }
    assert megads.names() == ["out", "out.report.json", "wiki.xml"]


def test_compressed_in_several_streams(megads: Corpus):
    data, wanted = make(40)
    parts = [data[at : at + 4000] for at in range(0, len(data), 4000)]
    (megads.folder / "wiki.xml.bz2").write_bytes(b"".join(map(bz2.compress, parts)))
    (megads.folder / "wiki.xml.gz").write_bytes(gzip.compress(data))
    for name in ("bz2", "gz"):
        megads.made("wikipedia", f"wiki.xml.{name}", name)
        assert megads.read(name) == wanted


def test_short_pages_are_dropped(megads: Corpus):
    data, wanted = make(40)
    (megads.folder / "wiki.xml").write_bytes(data)
    megads.made("wikipedia", "wiki.xml", "out", "--min-length", 200)
    assert megads.read("out") == [each for each in wanted if len(each["text"]) >= 200] != wanted
    assert megads.report("out")["reasons"]["short"] == sum(len(each["text"]) < 200 for each in wanted)


def test_killed_at_random_moments(megads: Corpus):
    data, wanted = make(600)
    (megads.folder / "wiki.xml").write_bytes(data)
    point = megads.folder / ".out.wikipedia" / "point.json"

    def pages() -> int:
        try:
            return int(json.loads(point.read_bytes())["pages"])
        except FileNotFoundError:
            return 0

    words = ("wikipedia", "wiki.xml", "out", *FINE, "--overwrite")
    megads.killed(*words, output="out", progress=pages, step=120, seed=2)
    megads.made(*words)
    assert megads.read("out") == wanted
    assert megads.report("out")["pages"] == {"read": 600, "kept": len(wanted), "dropped": 600 - len(wanted)}


@pytest.mark.parametrize("output", ["work", "named", "removed"])
def test_killed_between_the_names(megads: Corpus, output):
    """The report has its name already; the next call gives the output its own, finds it, or starts again."""
    data, wanted = make(30)
    (megads.folder / "wiki.xml").write_bytes(data)
    megads.made("wikipedia", "wiki.xml", "whole")
    report, whole = megads.report("whole"), (megads.folder / "whole").read_bytes()
    work = megads.folder / ".out.wikipedia"
    work.mkdir()
    digest = Extraction(look_at(str(megads.folder / "wiki.xml")), "out").digest
    counts = {**report["reasons"], "kept": len(wanted)}
    point = {"digest": digest, "pages": 30, "size": len(whole), "text_bytes": report["bytes"]["read"], "counts": counts}
    (work / "point.json").write_text(json.dumps(point))
    (megads.folder / "out.report.json").write_text(json.dumps({**report, "output": "out"}))
    if output != "removed":
        (work / "output" if output == "work" else megads.folder / "out").write_bytes(whole)
    else:
        (megads.folder / "out.report.json").unlink()
    done = megads.made("wikipedia", "wiki.xml", "out")
    assert done.out.startswith(f"out  # kept {len(wanted)} of 30 pages")
    assert (megads.folder / "out").read_bytes() == whole
    assert not work.exists()


def test_another_dump_starts_again(megads: Corpus):
    work = megads.folder / ".out.wikipedia"
    work.mkdir()
    (work / "output").write_bytes(b"x" * 100)
    (work / "point.json").write_text(
        json.dumps({"digest": "other", "pages": 3, "size": 50, "text_bytes": 1, "counts": {"kept": 3}})
    )
    data, wanted = make(20)
    (megads.folder / "wiki.xml").write_bytes(data)
    done = megads.made("wikipedia", "wiki.xml", "out")
    assert "resuming" not in done.err
    assert megads.read("out") == wanted
