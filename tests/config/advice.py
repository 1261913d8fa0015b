"""Read the changes that a refusal names, and make them as a user would."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """One of the changes that a line names: words such as ``TP=2``, ``--zero-stage=1`` or ``--set a.b=1``."""

    variables: dict[str, str]
    options: dict[str, str]
    dropped: tuple[str, ...]

    def words(self, given: Sequence[str]) -> list[str]:
        """Return the command line ``given`` with the options of this change."""
        kept: list[str] = []
        skip = False
        for word in given:
            if skip or word in self.dropped:
                skip = False
            elif word in self.options:
                skip = True
            elif kept[-1:] == ["--set"] and word.split("=")[0] in self.options:
                kept.pop()
            else:
                kept.append(word)
        for name, value in self.options.items():
            kept += [f"{name}={value}"] if name.startswith("--") else ["--set", f"{name}={value}"]
        return kept


def ways(message: str) -> list[Way]:
    """Return every change that ``message`` names."""
    advice = re.split(r"; (?=(?:use|leave|give|drop) )", message)[-1]
    found = []
    for part in re.split(r", or |, | or ", advice if advice != message else ""):
        variables = dict(re.findall(r"(?<!\S)([A-Z][A-Z0-9_]*)=(\S+)", part))
        options = dict(re.findall(r"(?<!\S)(--[\w-]+|[a-z]+\.\w+)=(\S+)", part))
        dropped = tuple(re.search(r"drop ((?:--[\w-]+ ?)+)", part)[1].split()) if "drop --" in part else ()
        if variables or options or dropped:
            found.append(Way(variables, options, dropped))
    return found
