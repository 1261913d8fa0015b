"""Why a URL is not downloaded: the rules of Megatron-LM's blacklist_urls.py, in its order."""

from __future__ import annotations

import re

from megads.data.corpus.urls.blocked import DOMAINS, ENDINGS, PATH_ENDINGS

SHORTEST = 9  # characters
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_URL = re.compile(
    rf"https?://(?:(?:{_LABEL}\.)+[a-z0-9-]{{2,}}\.?|\d{{1,3}}(?:\.\d{{1,3}}){{3}})(?::\d+)?(?:/|[/?]\S+)?",
    re.IGNORECASE,
)
_HOST = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//([^/?#]*)", re.IGNORECASE)
# Below a country's domain: what names are registered under.
_SECOND = frozenset(
    ["ac", "co", "com", "edu", "go", "gob", "gov", "govt", "gv", "ltd", "me", "mil", "ne", "net", "nom", "or", "org"]
)


def host_of(url: str) -> str:
    """Return the host of a URL in lower case, without user, port and last dot; "" for none."""
    found = _HOST.match(url)
    place = found[1] if found else re.split(r"[/?#]", url, maxsplit=1)[0]
    host = place.rpartition("@")[2].lower()
    if not host.startswith("["):
        host = host.partition(":")[0]
    return host.rstrip(".")


def domain_of(host: str) -> str:
    """Return the part of a host's name that somebody registered: ``example`` of www.example.co.uk."""
    labels = host.split(".")
    if len(labels) < 3:
        return labels[0]
    is_second = len(labels[-1]) == 2 and labels[-2] in _SECOND
    return labels[-3] if is_second else labels[-2]


def fault_of(url: str) -> str:
    """Return why ``url`` is dropped: domain, extension, short or malformed; "" where it is kept."""
    if domain_of(host_of(url)) in DOMAINS:
        return "domain"
    start = url.partition("?")[0].lower()
    has_path = "/" in start.partition("://")[2]
    if start.endswith(ENDINGS) or (has_path and start.endswith(PATH_ENDINGS)):
        return "extension"
    if len(url) < SHORTEST:
        return "short"
    return "" if _URL.fullmatch(url) else "malformed"
