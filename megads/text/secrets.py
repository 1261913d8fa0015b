"""What must not be written anywhere: keys, tokens and passwords, wherever they turn up in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

SHOWN = "***"

_WORDS = r"API_?KEY|ACCESS_?KEY(?:_ID)?|PRIVATE_?KEY|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIALS?"
_NAME = re.compile(rf"(?:^|_)(?:{_WORDS}|KEY)$", re.IGNORECASE)
_SECRETS = (
    re.compile(r"(?<=://)[^/\s@'\"]*:[^/\s@'\"]+(?=@)"),  # user:password@host
    re.compile(r"(?<=://)[^/\s@:'\"]{16,}(?=@)"),  # token@host
    re.compile(rf"(?<=[?&])(?P<name>[\w.-]*(?:{_WORDS}|signature|sig|key)=)[^&\s'\"]+", re.IGNORECASE),
    # NAME=VALUE and NAME: VALUE, also between quotes.
    re.compile(rf"(?P<name>\b\w*(?<![A-Za-z])(?:{_WORDS})['\"]?\s?[=:]\s?['\"]?)[^\s'\"&,;]{{4,}}", re.IGNORECASE),
    re.compile(r"\bhf_[A-Za-z0-9]{16,}"),  # Hugging Face
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),  # AWS
    re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|wandb_v\d_|sk-|npm_|dckr_[po]at_|pypi-)[\w-]{16,}"),
    re.compile(r"\bxox[abeprs]-[\w-]{10,}"),  # Slack
    re.compile(r"\bAIza[\w-]{35}"),  # Google
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),  # JSON web tokens: base64 of {" and so on
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*)", re.DOTALL),
)
_SHORTEST = 12  # characters of a secret; shorter values are words that occur everywhere


def is_secret_name(name: str) -> bool:
    """Return whether a variable of this name holds a secret, as ``HF_TOKEN`` does."""
    return bool(_NAME.search(name))


def hidden(text: str, env: Mapping[str, str] | None = None) -> str:
    """Return ``text`` with ``***`` in the place of every secret that can be recognised as one.

    These are passwords in addresses, values behind a name such as ``api_key=``, tokens of
    well-known form, and the values that variables with such a name have in ``env``.
    """
    for value in _values(env or {}):
        text = text.replace(value, SHOWN)
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: f"{found.groupdict().get('name') or ''}{SHOWN}", text)
    return text


def _values(env: Mapping[str, str]) -> Iterator[str]:
    found = {value for name, value in env.items() if is_secret_name(name) and len(value) >= _SHORTEST}
    # A key's file is not a secret; longer values first, for one may be part of another.
    yield from sorted((value for value in found if not value.startswith(("/", "~", "."))), key=len, reverse=True)
