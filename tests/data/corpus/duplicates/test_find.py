"""The command: pairs against all pairs compared with Python's sets; workers, files of fingerprints, kills."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from tests.data.corpus.conftest import FINE, Corpus
from tests.data.corpus.made import edited, text
from tests.data.preprocess.conftest import alive, kill, until

FIND = ("find-duplicates", "--heuristic-iter", -1)


def corpus(count: int, seed: int = 4) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    texts = [text(draw, draw.randint(3, 9)) for _ in range(count)]
    texts += [edited(draw, each, draw.choice([0, 0.02, 0.05])) for each in texts[: count // 3]]
    texts += ["", "five.", "five."]
    draw.shuffle(texts)
    return [{"url": f"u\u00e9/{number}", "n": number, "text": each} for number, each in enumerate(texts)]


def similar(documents: list[dict[str, Any]], least: float) -> dict[tuple[str, str], float]:
    """Return all pairs from ``least`` on."""
    sets = [(each["url"], {each["text"][at : at + 5] for at in range(len(each["text"]) - 5)}) for each in documents]
    found = {}
    for (one, first), (other, second) in itertools.combinations(sets, 2):
        if first and second and (value := len(first & second) / len(first | second)) > least:
            found[one, other] = value
    return found


def pairs_in(lines: list[dict[str, list[dict[str, float]]]]) -> dict[tuple[str, str], float]:
    found = {}
    for line in lines:
        ((main, others),) = line.items()
        for each in others:
            ((other, value),) = each.items()
            assert (main, other) not in found
            found[main, other] = value
    return found


def test_pairs_groups_and_what_is_left(megads: Corpus):
    documents = corpus(90)
    lines = megads.write("a.jsonl", documents)
    done = megads.made(*FIND, "--inputs", "a.jsonl", "url", "--output", "pairs")
    found, wanted = pairs_in(megads.read("pairs")), similar(documents, 0.5)
    assert found.items() <= wanted.items()
    clear = {pair for pair, value in wanted.items() if value >= 0.8}
    assert len(clear) > 15
    assert clear <= found.keys()
    assert done.out == f"pairs  # {len(found)} similar pairs of {len(documents)} documents\n"
    counts = megads.report("pairs")["counts"]
    assert (counts["short_texts"], counts["similar_pairs"]) == (3, len(found))

    done = megads.made("group-duplicates", "pairs", "groups", 0.8)
    groups = [names for line in megads.read("groups") for names in line.values()]
    assert {pair for names in groups for pair in itertools.combinations(names, 2)} >= clear
    removed = {name for names in groups for name in names[1:]}
    total = len(removed) + len(groups)
    assert done.out == f"groups  # {len(groups)} groups of {total} documents, of which {len(removed)} can be removed\n"

    done = megads.made("remove-duplicates", "groups", "a.jsonl", "left", "--dropped", "dropped")
    assert megads.lines("left") == [
        line for line, each in zip(lines, documents, strict=True) if each["url"] not in removed
    ]
    assert [each["url"] for each in megads.read("dropped")] == [
        each["url"] for each in documents if each["url"] in removed
    ]
    assert f"dropped {len(removed)}: duplicate {len(removed)}" in done.out
    first = {name: number for number, name in enumerate(each["url"] for each in documents)}
    assert all(first[names[0]] == min(first[name] for name in names) for names in groups)


def test_the_same_bytes_for_any_number_of_workers_and_from_saved_fingerprints(megads: Corpus):
    documents = corpus(60)
    megads.write("a.jsonl", documents[:50])
    megads.write("b.jsonl", [{"id": each["n"], "text": each["text"]} for each in documents[50:]])
    both = ("--inputs", "a.jsonl", "url", "b.jsonl", "id")
    megads.made(*FIND, *both, "--output", "one", "--save-fingerprints", "saved", "--workers", 1)
    for workers in (2, 3):
        megads.made(*FIND, *both, "--output", f"w{workers}", "--workers", workers, "--block-bytes", 3000)
        assert megads.lines(f"w{workers}") == megads.lines("one")
    done = megads.made("find-duplicates", "--inputs", "a.jsonl", "url", "--save-fingerprints", "fa")
    assert done.out == "fa  # fingerprints of 50 documents\n"
    megads.made("find-duplicates", "--inputs", "b.jsonl", "id", "--save-fingerprints", "fb")
    assert megads.lines("fa") + megads.lines("fb") == megads.lines("saved")
    megads.made(*FIND, "--load-fingerprints", "fa", "fb", "--output", "two")
    megads.made(*FIND, "--load-fingerprints", "fa", "--inputs", "b.jsonl", "id", "--output", "three")
    assert megads.lines("two") == megads.lines("three") == megads.lines("one")
    assert len(megads.lines("one")) > 10


def test_a_repeated_identifier_counts_once(megads: Corpus):
    documents = corpus(6)[:8]
    megads.write("a.jsonl", [*documents, *documents])
    done = megads.made(*FIND, "--inputs", "a.jsonl", "url", "--output", "pairs")
    assert done.out.endswith("; ignored 8 whose identifier came before\n")
    assert all(main not in each for line in megads.read("pairs") for main, others in line.items() for each in others)


@pytest.mark.parametrize("kind", ["union", "min", "max"])
def test_kinds_of_similarity(megads: Corpus, kind):
    long = text(random.Random(1), 12)
    short = long[: len(long) * 3 // 4]
    megads.write("a.jsonl", [{"url": "long", "text": long}, {"url": "short", "text": short}])
    megads.made(*FIND, "--inputs", "a.jsonl", "url", "--output", "pairs", "--jaccard", kind, "--num-bands", 50)
    first, second = ({each[at : at + 5] for at in range(len(each) - 5)} for each in (long, short))
    sizes = {"union": len(first | second), "min": len(second), "max": len(first)}
    assert megads.read("pairs") == [{"long": [{"short": len(first & second) / sizes[kind]}]}]


def test_killed_at_random_moments(megads: Corpus):
    megads.write("a.jsonl", corpus(220))
    words = (*FIND, "--inputs", "a.jsonl", "url", "--workers", 2)
    megads.made(*words, "--output", "expected")
    words = (*words, *FINE, "--output", "out", "--overwrite")
    megads.killed(*words, output="out", progress=lambda: megads.points("out"), step=7, seed=7)
    megads.made(*words)
    assert (megads.folder / "out").read_bytes() == (megads.folder / "expected").read_bytes()


def test_killed_while_pairs_are_compared(megads: Corpus):
    megads.write("a.jsonl", corpus(220))
    words = (*FIND, "--inputs", "a.jsonl", "url", "--workers", 2)
    megads.made(*words, "--output", "expected")
    pid = megads.start(*words, "--output", "out", "--commit-seconds", 0)
    until(lambda: not alive(pid) or (megads.folder / ".out.corpus" / "finish" / "signatures").exists())
    kill(pid)
    megads.wait(pid)
    megads.made(*words, "--output", "out", "--overwrite")
    assert (megads.folder / "out").read_bytes() == (megads.folder / "expected").read_bytes()
    assert json.loads(megads.lines("out")[0])


def test_two_ranks_make_the_same_bytes(megads: Corpus):
    """As mpiexec -n 2 does: fingerprints by both, pairs by the first."""
    megads.write("a.jsonl", corpus(60))
    words = (*FIND, "--inputs", "a.jsonl", "url", "--workers", 1)
    megads.made(*words, "--output", "one")
    first, second = megads.in_ranks(2, *words, "--output", "two")
    assert (first.code, second.code, second.out, second.err) == (0, 0, "", ""), (first, second)
    assert megads.lines("two") == megads.lines("one")
