"""The command on planted task texts: survivors against a plain loop over all places; workers, kills."""

from __future__ import annotations

import json
import pickle
import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from tests.data.corpus.conftest import FINE, Corpus
from tests.data.corpus.made import WORDS, text

TASKS = ("--tasks", "lambada", "squad", "--lambada-path", "lambada.jsonl", "--task-path", "squad=squad.json")
DATA = ("--dedup-dataset", "a.jsonl", "text")


def question(draw: random.Random, words: int) -> str:
    return " ".join(draw.choice(WORDS) + draw.choice(WORDS) for _ in range(words))


@dataclass(frozen=True)
class Planted:
    """Two tasks, a corpus that holds some of their texts, and what must be left of it."""

    passages: list[str]
    questions: list[str]
    documents: list[dict[str, Any]]
    ngrams: set[str]
    common: set[str]
    survivors: list[dict[str, Any]]
    counts: Counter[str]

    def write(self, megads: Corpus) -> None:
        megads.write("lambada.jsonl", [{"text": each} for each in self.passages])
        paragraphs = [{"qas": [{"question": each} for each in self.questions]}]
        (megads.folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
        megads.write("a.jsonl", self.documents)


@pytest.fixture(scope="module")
def planted() -> Planted:
    draw = random.Random(11)
    passages = [question(draw, draw.randint(20, 30)).capitalize() + "." for _ in range(12)]
    questions = [question(draw, draw.randint(5, 12)) + "?" for _ in range(12)]
    common = questions[0] = question(draw, 9) + "?"
    documents: list[dict[str, Any]] = []
    for number in range(80):
        parts = [text(draw, draw.randint(2, 14))]
        for _ in range(draw.choice([0, 0, 0, 1, 1, 2, 3])):
            cited = draw.choice(passages + questions)
            parts += [draw.choice([cited, cited.upper(), cited.replace(" ", "-")]), text(draw, draw.randint(5, 20))]
        if number % 6 == 0:
            parts += [common, text(draw, 9)]
        documents.append({"url": number, "text": " ".join(parts), "more": {"n": 10**30}})
    documents[5]["split_id"] = "earlier"
    documents[7]["text"] = " ".join(f"{text(draw, 25)} {draw.choice(passages)}" for _ in range(12))
    documents[8]["text"] = f"Short. {passages[0]} {passages[1]} The end."
    ngrams = ngrams_of(passages + questions)
    counts = Counter(each for row in documents for each in cut_by_hand(row["text"], ngrams, is_counting=True)[1])
    common_ones = {ngram for ngram, count in counts.items() if count >= 10}
    left, reasons = survivors(documents, ngrams - common_ones, "lambada-squad")
    assert common_ones
    assert min(reasons[name] for name in ("contaminated", "splits", "split", "trimmed")) > 0
    return Planted(passages, questions, documents, ngrams, common_ones, left, reasons)


def ngrams_of(texts: list[str]) -> set[str]:
    found = set()
    for each in texts:
        words = re.findall(r"\w+", each.lower())
        if len(words) >= 8:
            found |= {" ".join(words[at : at + 13]) for at in range(max(1, len(words) - 12))}
    return found


def first_match(words: list[str], ngrams: set[str]) -> tuple[int, str] | None:
    lengths = sorted({len(each.split()) for each in ngrams})
    places = [(at, length) for at in range(len(words) - 12) for length in (13, *lengths)]
    if len(words) > 13:
        tail = range(len(words) - 13, len(words))
        places += [(at, length) for length in lengths if length != 13 for at in tail if at + length <= len(words)]
    for at, length in places:
        if (ngram := " ".join(words[at : at + length])) in ngrams:
            return at, ngram
    return None


def cut_by_hand(given: str, ngrams: set[str], *, is_counting: bool) -> tuple[list[str], set[str]]:
    """Return the pieces of a text and the n-grams found in it: the procedure of the original, as a loop."""
    waiting, kept, found = [given], [], set()
    while waiting:
        now = waiting.pop(0)
        words = list(re.finditer(r"\w+", now.lower()))
        match = first_match([each.group() for each in words], ngrams)
        if match is None:
            kept.append(now)
            continue
        start, ngram = words[match[0]].start(), match[1]
        found.add(ngram)
        if is_counting:
            waiting.append(now[start + len(ngram) + 1 :])
            continue
        at = start - 200
        while at > 0 and now[at] not in ".!?":
            at -= 1
        if at > 0 and at + 1 > 200:
            kept.append(now[: at + 1])
        at = start + len(ngram) + 200
        while at < len(now) and now[at] not in ".!?":
            at += 1
        if len(now[at + 1 :]) > 200:
            waiting.append(now[at + 1 :])
    return kept, found


def survivors(
    documents: list[dict[str, Any]], ngrams: set[str], name: str
) -> tuple[list[dict[str, Any]], Counter[str]]:
    rows, counts = [], Counter()
    for number, document in enumerate(documents, 1):
        pieces, _ = cut_by_hand(document["text"], ngrams, is_counting=False)
        if not pieces or len(pieces) > 10:
            counts["contaminated" if not pieces else "splits"] += 1
            continue
        counts["split"] += len(pieces) > 1
        counts["trimmed"] += len(pieces) == 1 and pieces[0] != document["text"]
        before = f"{document['split_id']}-" if "split_id" in document else ""
        for place, piece in enumerate(pieces):
            rows.append({**document, "text": piece, "split_id": f"{before}{name}-{number:010d}-{place:04d}"})
    return rows, counts


@pytest.mark.parametrize("workers", [1, 3])
def test_survivors_are_those_of_the_plain_loop(megads: Corpus, planted: Planted, workers):
    planted.write(megads)
    wanted, counts = planted.survivors, planted.counts
    size = ("--workers", workers, "--block-bytes", 4000 * workers, "--dropped", "dropped")
    done = megads.made("decontaminate", *TASKS, *DATA, "--output", "out", "--save-dictionary", "dictionary", *size)
    assert megads.lines("out") == [json.dumps(each, ensure_ascii=False) for each in wanted]
    dropped = counts["contaminated"] + counts["splits"]
    kept, changed = len(planted.documents) - dropped, counts["split"] + counts["trimmed"]
    reasons = ", ".join(
        f"{name} {counts[name]}" for name in sorted(("contaminated", "splits"), key=lambda n: -counts[n])
    )
    assert done.out == f"out  # kept {kept} of 80 documents, changed {changed}; dropped {dropped}: {reasons}\n"
    assert len(megads.read("dropped")) == dropped
    found = megads.report("out")["counts"]
    assert found == {
        "common_ngrams": len(planted.common),
        "ngrams": len(planted.ngrams - planted.common),
        "pieces": len(wanted),
        "split": counts["split"],
        "trimmed": counts["trimmed"],
    }
    (dictionary,) = megads.read("dictionary")
    assert dictionary == {"ngrams": sorted(planted.ngrams - planted.common)}

    # The dictionary again, as Megatron-LM saves it: tasks are not read, nothing is counted.
    (megads.folder / "dictionary.pkl").write_bytes(pickle.dumps(dict.fromkeys(dictionary["ngrams"], 1)))
    (megads.folder / "squad.json").unlink()
    megads.made("decontaminate", *TASKS, *DATA, "--output", "again", "--load-dictionary", "dictionary.pkl")
    assert megads.lines("again") == megads.lines("out")


def test_the_dictionary_alone(megads: Corpus, planted: Planted):
    planted.write(megads)
    done = megads.made("decontaminate", *TASKS, *DATA, "--save-dictionary", "dictionary")
    wanted = sorted(planted.ngrams - planted.common)
    assert megads.read("dictionary") == [{"ngrams": wanted}]
    assert done.out == f"dictionary  # {len(wanted)} n-grams\n"


def test_a_corpus_without_any_and_tasks_of_short_texts(megads: Corpus):
    """Lines stay as they are but for the number; texts of fewer words than an n-gram match nothing."""
    megads.write("lambada.jsonl", [{"text": "too short"}])
    lines = ['{"text":"too short"}', '{"text": "\\u00fc", "n": 1e2 }', '{"text": "a",  "text": "b"}']
    megads.write("a.jsonl", lines)
    megads.made("decontaminate", *TASKS[:2], "--lambada-path", "lambada.jsonl", *DATA, "--output", "out")
    assert megads.lines("out") == [
        '{"text":"too short", "split_id": "lambada-0000000001-0000"}',
        '{"text": "\\u00fc", "n": 1e2, "split_id": "lambada-0000000002-0000"}',
        '{"text": "a",  "text": "b", "split_id": "lambada-0000000003-0000"}',
    ]


def test_killed_at_random_moments(megads: Corpus, planted: Planted):
    planted.write(megads)
    megads.write("a.jsonl", planted.documents * 4)
    megads.made("decontaminate", *TASKS, *DATA, "--output", "expected")
    words = ("decontaminate", *TASKS, *DATA, "--output", "out", "--workers", 2, *FINE, "--overwrite")
    megads.killed(*words, output="out", progress=lambda: megads.points("out"), step=7, seed=5)
    megads.made(*words)
    assert (megads.folder / "out").read_bytes() == (megads.folder / "expected").read_bytes()


def test_two_ranks_make_the_same_bytes(megads: Corpus, planted: Planted):
    """As mpiexec -n 2 does: n-grams are found by both, and cut by the first."""
    planted.write(megads)
    first, second = megads.in_ranks(2, "decontaminate", *TASKS, *DATA, "--output", "out", "--workers", 1)
    assert (first.code, second.code, second.out, second.err) == (0, 0, "", ""), (first, second)
    assert megads.read("out") == planted.survivors
