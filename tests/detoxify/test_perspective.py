"""The Perspective API against a server on this host: right answers, errors of every kind, and what is asked."""

from __future__ import annotations

import socket
import sys
import threading
import time
from email.utils import formatdate
from types import SimpleNamespace

import pytest

from megads.detoxify.perspective import ATTRIBUTES, MOST, Pace, Perspective, ServiceOptions, _retry_after
from megads.detoxify.stopped import Stopped
from megads.errors import ConfigError, DataError, DependencyError
from tests.detoxify.service import KEY, NAMES, failure, good, served, value_of

_made: list[Perspective] = []


@pytest.fixture(autouse=True)
def _closed():
    yield
    while _made:
        _made.pop().close()


def _scorer(service, waits=None, **options):
    """Return a scorer; with ``waits`` it notes its waits there and does not wait."""
    options = {"qps": 1e5, "workers": 2, "timeout_s": 60.0, **options}
    scorer = Perspective(ServiceOptions(KEY, service.url, **options))
    _made.append(scorer)
    if waits is not None:
        scorer._sleep = waits.append
        scorer._retrying.sleep = waits.append
    return scorer


def _expected(text):
    return {name: value_of(text, name.upper()) for name in ATTRIBUTES}


def test_what_is_asked_and_what_comes_back():
    with served() as service:
        assert _scorer(service).score(["fine", "n\u00e9"]) == [_expected("fine"), _expected("n\u00e9")]
    assert service.seen == ["fine", "n\u00e9"]
    assert service.keys == [KEY, KEY]
    assert service.bodies[0] == {
        "comment": {"text": "fine"},
        "requestedAttributes": {name: {} for name in NAMES},
        "spanAnnotations": False,
        "languages": ["en"],
        "doNotStore": True,
    }


TEMPORARY = {
    "too many requests": failure(429, "Quota exceeded"),
    "an error of the server": failure(500),
    "a bad gateway that answers with a page": (502, {}, b"<html>"),
    "no service": (503, {}, b""),
    "a connection that breaks": (0, {}, b""),
    "no JSON": (200, {}, b"{"),
    "a list": (200, {}, b"[]"),
    "no scores": (200, {}, b'{"attributeScores": {}}'),
    "a score that is not one": (200, {}, good("x")[2].replace(b'"value": ', b'"value": 7')),
    "a score that is a text": (200, {}, good("x")[2].replace(b'"value": ', b'"value": "a", "b": ')),
    "more bytes than an answer has": (200, {}, good("a")[2] + b" " * MOST),
    "an answer that is cut short": (200, {"Content-Length": "99", "Connection": "close"}, b"{}"),
    "an answer that cannot be unpacked": (200, {"Content-Encoding": "gzip"}, b"no gzip"),
}


@pytest.mark.parametrize("reply", list(TEMPORARY.values()), ids=list(TEMPORARY))
def test_what_may_work_later_is_asked_again(reply):
    waits: list[float] = []
    with served(lambda text, number: good(text) if number == 2 else reply) as service:
        assert _scorer(service, waits).score(["a"]) == [_expected("a")]
    assert service.seen == ["a"] * 3
    assert len(waits) == 5  # three turns, and a wait before the second and the third
    with served(lambda text, number: reply) as service:
        with pytest.raises(
            DataError, match=r"^http.*, in 3 attempts; texts that have scores are kept: rerun"
        ) as caught:
            _scorer(service, [], attempts=3).score(["a"])
        assert len(service.seen) == 3
    assert KEY not in str(caught.value)


def test_a_slow_answer_is_asked_again():
    release = threading.Event()

    def reply(text, number):
        if not number:
            release.wait(60)
        return good(text)

    with served(reply) as service:
        try:
            assert _scorer(service, [], timeout_s=0.5, attempts=200).score(["a"]) == [_expected("a")]
        finally:
            release.set()
    assert len(service.seen) >= 2


def test_an_answer_that_drips_ends_too():
    now = [0.0]
    with served() as service:
        scorer = _scorer(service, [], attempts=1)
        scorer._now = lambda: now.__setitem__(0, now[0] + 61) or now[0]
        with pytest.raises(DataError, match="no answer before --timeout, in 1 attempts"):
            scorer.score(["a"])


def test_waits_grow_and_what_the_server_asks_for_holds_all_requests():
    waits: list[float] = []
    with served(
        lambda text, number: good(text) if number == 3 else failure(429, headers={"Retry-After": "7"})
    ) as service:
        scorer = _scorer(service, waits)
        held: list[float] = []
        scorer._pace.hold = held.append
        scorer.score(["a"])
    assert held == [7.0] * 3
    assert sum(wait >= 7 for wait in waits) == 3
    assert all(wait <= 60 for wait in waits)


def test_a_wait_that_is_too_long_ends_the_command():
    with served(lambda text, number: failure(429, "daily quota", {"Retry-After": "3600"})) as service:
        with pytest.raises(DataError, match=r"HTTP 429: daily quota; it asks to wait 1h00m, more than --patience"):
            _scorer(service).score(["a"])
        assert len(service.seen) == 1


def test_dates_and_numbers_of_retry_after():
    assert _retry_after("12") == 12
    assert _retry_after(formatdate(1000, usegmt=True), now=lambda: 940.0) == 60
    assert _retry_after(formatdate(900, usegmt=True), now=lambda: 940.0) == 0
    assert [_retry_after(text) for text in ("", "soon", "-5", "1.5", "9" * 400)] == [0, 0, 0, 0, 999999999]


@pytest.mark.parametrize("reason", ["COMMENT_EMPTY", "COMMENT_TOO_LONG", "LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE"])
def test_a_text_that_the_service_refuses_has_no_score(reason):
    with served(lambda text, number: failure(400, "no", errorType=reason) if text == "b" else good(text)) as service:
        assert _scorer(service).score(["a", "b"]) == [_expected("a"), None]
    assert service.seen == ["a", "b"]


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (
            failure(400, f"API key not valid: {KEY}\nplease", reason="API_KEY_INVALID"),
            r"HTTP 400: API key not valid: \*\*\*",
        ),
        (failure(403, "Comment Analyzer API has not been used"), "HTTP 403: Comment .*; check the key"),
        ((401, {}, b"<html>"), "HTTP 401; check the key of the API and its quota"),
        ((404, {}, b"nothing here"), "HTTP 404; check --url"),
        ((302, {"Location": "https://elsewhere"}, b""), "HTTP 302; check --url"),
    ],
)
def test_what_fails_for_good_is_asked_once(reply, words):
    with served(lambda text, number: reply) as service:
        with pytest.raises(ConfigError, match=words) as caught:
            _scorer(service).score(["a"])
        assert len(service.seen) == 1
    assert KEY not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there():
    with socket.socket() as taken:  # nobody listens
        taken.bind(("127.0.0.1", 0))
        service = SimpleNamespace(url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(DataError, match=r"the connection failed \(ConnectError\), in 2 attempts"):
            _scorer(service, [], attempts=2).score(["a"])


def test_requests_are_spread_evenly_by_all_threads():
    now = [10.0]
    pace = Pace(4, lambda: now[0])
    assert [pace.turn() for _ in range(4)] == [0, 0.25, 0.5, 0.75]
    now[0] = 10.5
    assert pace.turn() == 0.5
    assert not pace.is_held
    pace.hold(3)
    assert pace.is_held
    assert [pace.turn(), pace.turn()] == [3.0, 3.25]
    pace.hold(1)  # shorter than what holds already
    assert pace.turn() == 3.5
    now[0] = 99.0
    assert not pace.is_held
    assert pace.turn() == 0


def test_who_has_a_turn_waits_too_when_the_service_asks_for_a_wait():
    now = [0.0]
    with served() as service:
        scorer = _scorer(service, qps=1.0)
        scorer._pace = pace = Pace(1.0, lambda: now[0])
        slept: list[float] = []

        def sleep(seconds):
            if not slept:
                pace.hold(5)  # another request is refused in the meantime
            slept.append(seconds)
            now[0] += seconds

        scorer._sleep = sleep
        scorer.score(["a"])
    assert slept == [0, 5]


def test_a_wait_ends_when_the_user_stops_it():
    with served(lambda text, number: failure(429, headers={"Retry-After": "500"})) as service:
        scorer, found = _scorer(service), []

        def ask():
            try:
                scorer.score(["a"])
            except Stopped:
                found.append(True)

        thread = threading.Thread(target=ask)
        thread.start()
        while not service.seen:
            time.sleep(0.01)
        scorer.stop()
        thread.join(60)
    assert found == [True]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": ""}, "needs a key of the API; set PERSPECTIVE_API_KEY, or pass --key-file FILE"),
        ({"key": "a b"}, "the key of the API has blanks"),
        ({"key": "a\nb"}, "the key of the API has blanks"),
        ({"url": "ftp://x"}, "--url ftp://x: expected an address such as https://commentanalyzer"),
        ({"url": "https://"}, "expected an address"),
        ({"url": "https://a:b"}, "expected an address"),
        ({"url": "https://me:pass@host"}, r"--url https://\*\*\*@host: expected"),
        ({"url": "https://host?key=5"}, "expected an address"),
        ({"url": "http://example.org"}, "the key would be sent unencrypted; use https"),
    ],
)
def test_settings_that_are_wrong(options, words):
    with pytest.raises(ConfigError, match=words):
        Perspective(ServiceOptions(**{"key": KEY, **options}))


def test_without_its_packages_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tenacity", None)
    with pytest.raises(DependencyError, match=r"needs tenacity; pip install -e '.\[detoxify\]'"):
        Perspective(ServiceOptions(KEY))


def test_nothing_that_is_noted_holds_the_key():
    with served() as service:
        assert KEY not in repr(_scorer(service).about())
