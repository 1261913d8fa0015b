"""Scores of Google's Perspective API: commentanalyzer v1alpha1, over HTTP."""

from __future__ import annotations

import email.utils
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from megads.detoxify.stopped import Stopped
from megads.errors import ConfigError, DataError, DependencyError, plain
from megads.storage.reading import parse_json
from megads.text.secrets import hidden
from megads.text.units import duration

if TYPE_CHECKING:
    import httpx
    from tenacity import RetryCallState

URL = "https://commentanalyzer.googleapis.com"
PATH = "/v1alpha1/comments:analyze"
ATTRIBUTES = ("toxicity", "severe_toxicity", "sexually_explicit", "threat", "profanity", "identity_attack")
KEY_NAME = "PERSPECTIVE_API_KEY"
UNSCORED = ("COMMENT_EMPTY", "COMMENT_TOO_LONG", "LANGUAGE_NOT_SUPPORTED_BY_ATTRIBUTE")
"""Errors of the service that are about one text: it gets no score."""
MOST = 1 << 20
"""Bytes of an answer."""
LONGEST_S = 60.0
"""Between two attempts, unless the service asks for more."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServiceOptions:
    """How to ask the service.

    Attributes:
        key: of the API; never printed.
        url: of the service, or of a server that answers in its place.
        qps: requests per second at most.
        workers: requests at a time.
        attempts: for one text, before the command ends.
        timeout_s: of one request.
        patience_s: longest wait that the service may ask for.
        language: of the texts.
    """

    key: str = ""
    url: str = URL
    qps: float = 1.0
    workers: int = 10
    attempts: int = 8
    timeout_s: float = 30.0
    patience_s: float = 600.0
    language: str = "en"


class _Retryable(Exception):
    """An attempt that failed and may work later; ``after_s``: what the service says about when."""

    def __init__(self, why: str, after_s: float = 0.0):
        super().__init__(why)
        self.after_s = after_s


class Pace:
    """Spreads requests evenly: at most ``qps`` of them per second, by all threads.

    Args:
        qps: requests per second.
        now: a clock in seconds.
    """

    def __init__(self, qps: float, now: Callable[[], float] = time.monotonic):
        self._interval, self._now = 1 / qps, now
        self._lock, self._next, self._held = threading.Lock(), now(), now()

    def turn(self) -> float:
        """Take the next turn; return the seconds until it."""
        with self._lock:
            now = self._now()
            begin = max(now, self._next)
            self._next = begin + self._interval
            return begin - now

    def hold(self, seconds: float) -> None:
        """Give no turn in the next ``seconds``."""
        with self._lock:
            self._held = max(self._held, self._now() + seconds)
            self._next = max(self._next, self._held)

    @property
    def is_held(self) -> bool:
        """Whether no request may be sent, also by those whose turn it is."""
        return self._now() < self._held


class Perspective:
    """Asks the service for the scores of texts, one text a request.

    Raises:
        ConfigError: there is no key, or the address cannot be used.
        DependencyError: a package of the extra ``detoxify`` is missing.
    """

    batch = 1

    def __init__(self, options: ServiceOptions, now: Callable[[], float] = time.monotonic):
        try:
            import httpx
            import tenacity
        except ImportError as error:
            raise DependencyError(
                f"--scorer perspective needs {error.name}; pip install -e '.[detoxify]' in the checkout"
            ) from None
        is_local = _check_address(options.url)
        if not options.key:
            raise ConfigError(f"--scorer perspective needs a key of the API; set {KEY_NAME}, or pass --key-file FILE")
        if not (options.key.isascii() and options.key.isprintable() and " " not in options.key):
            raise ConfigError("the key of the API has blanks, or characters that are not ASCII; pass the key alone")
        self.workers, self._options, self._now = options.workers, options, now
        self._pace, self._stopping = Pace(options.qps, now), threading.Event()
        self._client = httpx.Client(timeout=options.timeout_s, trust_env=not is_local)
        self._transport_errors = (httpx.TransportError, httpx.DecodingError)
        self._retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(options.attempts),
            wait=self._wait,
            retry=tenacity.retry_if_exception_type(_Retryable),
            sleep=self._sleep,
            reraise=True,
        )
        self._backoff = tenacity.wait_random_exponential(multiplier=1, max=LONGEST_S)

    def about(self) -> Mapping[str, Any]:
        """Return what decides the scores."""
        asked = {"url": self._options.url, "language": self._options.language, "attributes": list(ATTRIBUTES)}
        return {"scorer": "perspective", **asked}

    def score(self, texts: Sequence[str]) -> list[Mapping[str, float] | None]:
        """Return the scores of texts; see :class:`megads.detoxify.scoring.Scorer`."""
        return [self._score(text) for text in texts]

    def stop(self) -> None:
        """Let calls that wait end."""
        self._stopping.set()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _score(self, text: str) -> Mapping[str, float] | None:
        try:
            return self._retrying(self._ask, text)
        except _Retryable as error:
            raise DataError(
                f"{self._options.url}: {error}, in {self._options.attempts} attempts; texts that have scores are kept: "
                "rerun the same command to resume"
            ) from None

    def _wait(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.after_s if isinstance(error, _Retryable) else 0.0
        return max(asked, self._backoff(state))

    def _sleep(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise Stopped

    def _ask(self, text: str) -> Mapping[str, float] | None:
        self._sleep(self._pace.turn())
        while self._pace.is_held:
            self._sleep(self._pace.turn())
        request = {
            "comment": {"text": text},
            "requestedAttributes": {name.upper(): {} for name in ATTRIBUTES},
            "spanAnnotations": False,
            "languages": [self._options.language],
            "doNotStore": True,
        }
        url = self._options.url.rstrip("/") + PATH
        try:
            with self._client.stream("POST", url, params={"key": self._options.key}, json=request) as response:
                content = self._content(response)
        except self._transport_errors as error:
            why = "no answer before --timeout" if "Timeout" in type(error).__name__ else "the connection failed"
            raise _Retryable(f"{why} ({type(error).__name__})") from None
        if response.status_code == 200:
            return _scores(content)
        self._check_refusal(response, content)
        return None

    def _content(self, response: httpx.Response) -> bytes:
        """Read an answer of a bounded size, in a bounded time."""
        end, parts, size = self._now() + self._options.timeout_s, [], 0
        for part in response.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > MOST or self._now() > end:
                raise _Retryable(
                    f"an answer of more than {MOST} bytes" if size > MOST else "no answer before --timeout"
                )
        return b"".join(parts)

    def _check_refusal(self, response: httpx.Response, content: bytes) -> None:
        """Raise, unless the service gives this one text no score."""
        message, reasons = _error_of(content)
        status = response.status_code
        why = f"HTTP {status}{': ' if message else ''}{self._shown(message)}"
        if status == 429 or status >= 500 or status == 408:
            after_s = _retry_after(response.headers.get("retry-after", ""))
            if after_s > self._options.patience_s:
                raise DataError(
                    f"{self._options.url}: {why}; it asks to wait {duration(after_s)}, more than --patience: texts "
                    "that have scores are kept, rerun the same command later to resume"
                )
            if after_s:
                self._pace.hold(after_s)
            raise _Retryable(why, after_s)
        if status == 400 and reasons & set(UNSCORED):
            return
        cure = "check the key of the API and its quota" if status in (400, 401, 403) else "check --url"
        raise ConfigError(f"{self._options.url}: {why}; {cure}")

    def _shown(self, message: str) -> str:
        """Return a message of the service without the key, on one line, of a bounded length."""
        return plain(hidden(message.replace(self._options.key, "***")))[:200]


def _check_address(url: str) -> bool:
    """Return whether an address is on this host; ConfigError where it cannot be used."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host, parts = "", urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise ConfigError(f"--url {hidden(url)}: expected an address such as {URL}")
    is_local = host in LOOPBACK
    if parts.scheme == "http" and not is_local:
        raise ConfigError(f"--url {url}: the key would be sent unencrypted; use https")
    return is_local


def _scores(content: bytes) -> Mapping[str, float]:
    """Return the scores of an answer."""
    try:
        found = parse_json(content)
        values = {name: found["attributeScores"][name.upper()]["summaryScore"]["value"] for name in ATTRIBUTES}
    except (ValueError, LookupError, TypeError):
        raise _Retryable("an answer without the scores") from None
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise _Retryable(f"an answer with the score {name}={value!s:.40}")
    return {name: float(value) for name, value in values.items()}


def _error_of(content: bytes) -> tuple[str, set[str]]:
    """Return message and reasons of an error; nothing of what is not the service's JSON."""
    try:
        error = parse_json(content)["error"]
        details = [each for each in error.get("details") or [] if isinstance(each, dict)]
        reasons = {str(each[name]) for each in details for name in ("errorType", "reason") if name in each}
        return str(error.get("message", "")), reasons
    except (ValueError, LookupError, TypeError, AttributeError):
        return "", set()


def _retry_after(text: str, now: Callable[[], float] = time.time) -> float:
    """Return the seconds of a header ``Retry-After``, a number or a date; 0: none that can be read."""
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - now())
    except (ValueError, TypeError, OverflowError):
        return 0.0
