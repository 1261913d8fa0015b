"""Lists of URLs become one: exact survivors, in the order of the input, for any number of workers."""

from __future__ import annotations

import random

import numpy as np
import pytest

from megads.data.corpus.urls.rules import fault_of
from megads.data.corpus.urls.step import first_ones


@pytest.mark.parametrize("has_duplicates", [True, False])
@pytest.mark.parametrize("workers", [1, 2])
def test_survivors(megads, workers, has_duplicates):
    rng = random.Random(7)
    urls = [f"http://site{number}.org/{rng.choice(['a', 'b.pdf', 'c d', 'e'])}" for number in range(300)]
    urls += ["http://imgur.com/1", "x", "http://b\u00fccher.org/", "http://example.org/\u00fc"]
    urls += rng.choices(urls, k=200) if has_duplicates else []
    rng.shuffle(urls)
    lists = megads.folder / "lists"
    lists.mkdir()
    (lists / "a.txt").write_text("\n".join(urls[:150]))
    (lists / "b.txt").write_text("\r\n\n".join(urls[150:]) + "\n")
    (lists / "c.html").write_text("not taken")
    expected = list(dict.fromkeys(url for url in urls if not fault_of(url)))
    words = ["urls", "lists", "urls.txt", "--dropped", "gone", "--workers", workers, "--block-bytes", 500]
    done = megads.made(*words)
    assert megads.lines("urls.txt") == expected
    gone = megads.read("gone")
    assert len(gone) == len(urls) - len(expected)
    faults = [fault_of(each["url"]) or "duplicate" for each in gone]
    assert [each["dropped"]["reason"] for each in gone] == faults
    assert done.out.startswith(f"urls.txt  # kept {len(expected)} of {len(urls)} documents; dropped {len(gone)}: ")
    reasons = megads.report("urls.txt")["reasons"]
    assert {name: each["documents"] for name, each in reasons.items()} == {name: faults.count(name) for name in faults}


def test_line_that_is_not_text(megads):
    (megads.folder / "a.txt").write_bytes(b"http://a.org/\n\xff\xfe\n")
    assert megads("urls", "a.txt", "out").error.startswith("megads: a.txt:2: is not UTF-8 (byte 0 is 0xff)")
    assert megads.made("urls", "a.txt", "out", "--max-bad-lines", 1).out == "out  # kept 1 of 1 document\n"


def test_first_ones():
    digests = np.array([[1, 2], [1, 3], [1, 2], [0, 2], [1, 3], [1, 2]], np.uint64)
    assert first_ones(digests).tolist() == [True, True, False, True, False, False]
    assert first_ones(digests[:0]).tolist() == []
