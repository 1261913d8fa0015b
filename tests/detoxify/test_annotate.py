"""Every text gets its own score, in order, whatever the service does and whenever the command is stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import threading

import pytest

from megads.detoxify.annotate import annotate, look_at, scored_text
from megads.detoxify.output_lines import OutputLines
from megads.detoxify.perspective import ATTRIBUTES, Perspective, ServiceOptions
from megads.detoxify.word_list import WordList
from megads.errors import ConfigError, DataError
from tests.detoxify.service import KEY, failure, good, served, value_of


def _source(path, texts):
    path.write_text(
        "".join(json.dumps({"text": text, "prompt": "p", "id": place}) + "\n" for place, text in enumerate(texts))
    )
    return look_at(path)


def _annotated(source, target, scorer):
    with OutputLines(target, source.about(scorer)) as lines:
        return annotate(source, lines, scorer)


def _records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def _perspective(service, **options):
    scorer = Perspective(ServiceOptions(KEY, service.url, **{"qps": 1e5, "timeout_s": 60.0, **options}))
    scorer._backoff = lambda state: 0.0
    return scorer


def _by_hand(texts):
    """Return what the server's scores of texts are."""
    found = []
    for place, text in enumerate(texts):
        score = {name: value_of(text, name.upper()) for name in ATTRIBUTES} if text.strip() else None
        found.append({"text": text, "prompt": "p", "id": place, "score": score})
    return found


def test_ends_of_text_are_removed_and_empty_texts_have_no_score(tmp_path):
    texts = ["you idiot<|endoftext|>", "<|endoftext|>", " \n", "", "hate <|endoftext|> hate"]
    source = _source(tmp_path / "a", texts)
    found = _annotated(source, tmp_path / "b", WordList())
    assert (found.had, found.new, found.empty, found.refused, found.ended_by) == (0, 5, 3, 0, 0)
    records = _records(tmp_path / "b")
    assert [each["text"] for each in records] == ["you idiot", "", " \n", "", "hate  hate"]
    assert [each["score"] for each in records] == [{"toxicity": 0.5}, None, None, None, {"toxicity": 0.75}]
    assert [each["id"] for each in records] == [0, 1, 2, 3, 4]


def test_texts_are_cut_between_characters():
    for letter in ("a", "\u00e9", "\u20ac", "\U0001f600"):
        size = len(letter.encode())
        for shift in range(4):
            cut = scored_text("x" * shift + letter * 20480).encode()
            assert cut.decode() == "x" * shift + letter * ((20480 - shift) // size)
    assert scored_text("a\ud800b") == "a?b"
    assert scored_text("a" * 20480) == "a" * 20480


@pytest.mark.parametrize("workers", [1, 5])
def test_a_service_with_errors_of_every_kind_gives_every_text_its_own_score(tmp_path, workers):
    draw = random.Random(1)
    texts = [draw.choice(["", f"text {number}", f"text {number} \u00e9" * 40]) for number in range(60)]
    errors = [
        failure(429),
        failure(429, headers={"Retry-After": "0"}),
        failure(503),
        (500, {}, b"<html>"),
        (200, {}, b"{"),
        (200, {}, b"{}"),
        (0, {}, b""),
    ]
    plans = {text: draw.choices(errors, k=draw.randint(0, 3)) for text in texts}

    def reply(text, number):
        return plans[text][number] if number < len(plans[text]) else good(text)

    with served(reply) as service:
        found = _annotated(_source(tmp_path / "a", texts), tmp_path / "b", _perspective(service, workers=workers))
    assert _records(tmp_path / "b") == _by_hand(texts)
    assert found.empty == texts.count("")
    assert len(service.seen) == sum(1 + len(plans[text]) for text in texts if text)
    assert service.most <= workers


def test_answers_out_of_order_are_written_in_order(tmp_path):
    texts = [f"t{number}" for number in range(8)]
    released = {text: threading.Event() for text in texts}

    def reply(text, number):
        if text == "t0":
            released["t1"].wait(60)  # the first answers last of both
        released[text].set()
        return good(text)

    with served(reply) as service:
        _annotated(_source(tmp_path / "a", texts), tmp_path / "b", _perspective(service, workers=2))
    assert _records(tmp_path / "b") == _by_hand(texts)


def test_a_failure_keeps_what_is_scored_and_the_same_command_resumes(tmp_path):
    texts = [f"t{number}" for number in range(10)]
    source, is_down = _source(tmp_path / "a", texts), [True]

    def reply(text, number):
        return failure(503) if text == "t6" and is_down[0] else good(text)

    with served(reply) as service:
        with pytest.raises(DataError, match="HTTP 503, in 3 attempts"):
            _annotated(source, tmp_path / "b", _perspective(service, workers=1, attempts=3))
        assert not (tmp_path / "b").exists()
        assert len(_records(tmp_path / "b.part")) == 6
        is_down[0] = False
        service.seen.clear()
        found = _annotated(source, tmp_path / "b", _perspective(service, workers=1))
        assert service.seen == texts[6:]
    assert (found.had, found.new) == (6, 4)
    assert _records(tmp_path / "b") == _by_hand(texts)


# Of several workers one may still wait for its turn when the signal comes.
@pytest.mark.parametrize(("number", "workers", "least"), [(signal.SIGINT, 1, 8), (signal.SIGTERM, 3, 0)])
def test_a_signal_keeps_what_is_under_way_and_loses_nothing(tmp_path, number, workers, least):
    texts = [f"t{place}" for place in range(30)]
    source = _source(tmp_path / "a", texts)
    sent = threading.Event()

    def reply(text, count):
        if text == "t7" and not sent.is_set():
            os.kill(os.getpid(), number)
            sent.set()
        return good(text)

    with served(reply) as service:
        found = _annotated(source, tmp_path / "b", _perspective(service, workers=workers))
        assert found.ended_by == number
        assert not (tmp_path / "b").exists()
        kept = _records(tmp_path / "b.part")
        assert least <= len(kept) == found.new < 30
        assert kept == _by_hand(texts)[: len(kept)]
        found = _annotated(source, tmp_path / "b", _perspective(service, workers=3))
    assert found.had == len(kept)
    assert _records(tmp_path / "b") == _by_hand(texts)


class _Slow(WordList):
    """Answers the first text when it is asked to stop, as a request that is under way, the others at once."""

    batch, workers = 1, 2

    def __init__(self):
        super().__init__()
        self.stopped = threading.Event()

    def score(self, texts):
        if texts == ["first"]:
            os.kill(os.getpid(), signal.SIGINT)
            assert self.stopped.wait(60)
        return super().score(texts)

    def stop(self):
        self.stopped.set()


def test_an_answer_that_comes_after_the_signal_counts(tmp_path):
    source = _source(tmp_path / "a", ["first", *["idiot"] * 20])
    found = _annotated(source, tmp_path / "b", _Slow())
    kept = _records(tmp_path / "b.part")
    assert 1 <= found.new == len(kept) <= 4
    assert [each["id"] for each in kept] == list(range(len(kept)))


def test_a_crash_at_any_byte_loses_nothing(tmp_path):
    source = _source(tmp_path / "a", ["fine", "you idiot", "", "hate \u00e9 hate"])
    scorer = WordList()
    with OutputLines(tmp_path / "b", source.about(scorer)) as lines:
        annotate(source, lines, scorer)
    whole = (tmp_path / "b").read_bytes()
    for size in range(len(whole) + 1):
        target = tmp_path / "c"
        with OutputLines(target, source.about(scorer)):
            pass
        (tmp_path / "c.part").write_bytes(whole[:size])
        found = _annotated(source, target, scorer)
        assert found.had == whole[:size].count(b"\n")
        assert target.read_bytes() == whole
        for path in tmp_path.glob("c*"):
            path.unlink()


def test_texts_that_the_service_refuses_are_counted(tmp_path):
    def reply(text, number):
        return failure(400, errorType="COMMENT_TOO_LONG") if text == "b" else good(text)

    with served(reply) as service:
        found = _annotated(_source(tmp_path / "a", ["a", "b", ""]), tmp_path / "b", _perspective(service))
    assert (found.empty, found.refused) == (1, 1)
    assert [each["score"] is None for each in _records(tmp_path / "b")] == [False, True, True]
    assert json.loads((tmp_path / "b.report.json").read_text())["refused"] == 1


def test_an_input_that_changed_is_not_mixed_with_what_is_scored(tmp_path):
    with OutputLines(tmp_path / "b", _source(tmp_path / "a", ["x", "y"]).about(WordList())):
        pass
    with pytest.raises(DataError, match=r"b.part: begun with content \w+, not \w+"):
        OutputLines(tmp_path / "b", _source(tmp_path / "a", ["x", "z"]).about(WordList()))


def test_no_key_in_anything_that_is_written(tmp_path):
    with served() as service:
        _annotated(_source(tmp_path / "a", ["x"]), tmp_path / "b", _perspective(service))
    with served(lambda text, number: failure(403, f"bad key {KEY}")) as service, pytest.raises(ConfigError):
        _annotated(_source(tmp_path / "a", ["x"]), tmp_path / "c", _perspective(service))
    assert not [path for path in tmp_path.iterdir() if KEY in path.read_text()]


def test_a_line_without_a_text_is_found_before_anything_is_scored(tmp_path):
    (tmp_path / "a").write_text('{"text": "x"}\n{"words": 1}\n')
    with pytest.raises(DataError, match='a:2: has no "text"'):
        look_at(tmp_path / "a")
