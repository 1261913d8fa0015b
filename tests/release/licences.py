"""Licences of the packages that megads runs with, as their own metadata states them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata

from packaging.requirements import Requirement

ALLOWED = frozenset(
    (
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT"),
        *("MIT-0", "MIT-CMU", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib", "LLVM-exception"),
    )
)
"""SPDX identifiers. With each of them a package may be used by, and passed on with, a program under Apache-2.0."""

EXCEPTIONS = {
    "certifi": ("MPL-2.0", "a list of certificates, unchanged; MPL-2.0 covers its own files only"),
    "chardet": ("LGPL-2.1-or-later", "only with lm-eval, for its tables; imported, neither changed nor shipped"),
    "fastokens": ("", "its metadata states none; its file licenses/LICENSE is the text of Apache-2.0"),
    "hjson": ("MIT AND AFL-2.1", "needed by DeepSpeed; both licences let programs of other licences use it"),
    "orjson": ("MPL-2.0 AND (Apache-2.0 OR MIT)", "imported, unchanged; MPL-2.0 covers its own files only"),
    "pycountry": ("LGPL-2.1-only", "only with codecarbon (extra track); imported, neither changed nor shipped"),
    "tqdm": ("MPL-2.0 AND MIT", "imported, unchanged; MPL-2.0 covers its own files only"),
}
"""Package -> its licence as its metadata states it, and why it may be used all the same."""

_NAMES = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Academic Free License (AFL)": "AFL-2.1",
    "Apache 2.0 License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "GNU Lesser General Public License v2 or later (LGPLv2+)": "LGPL-2.1-or-later",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The MIT License (MIT)": "MIT",
}
"""What metadata calls a licence, where it is not an SPDX expression."""


def packages_of(name: str, extras: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Return every installed package that ``name`` with some extras needs here, by normalised name."""
    found: dict[str, metadata.Distribution] = {}
    asked: dict[str, set[str]] = {}
    waiting = [(name, tuple(extras))]
    while waiting:
        each, wanted = waiting.pop()
        key = normalised(each)
        new = set(wanted) - asked.get(key, set())
        if key in asked and not new:
            continue
        asked.setdefault(key, set()).update(wanted)
        found[key] = metadata.distribution(each)
        for line in found[key].requires or []:
            needed = Requirement(line)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                waiting.append((needed.name, tuple(needed.extras)))
    return found


def normalised(name: str) -> str:
    """Return a package's name as indices write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_of(package: metadata.Distribution) -> str:
    """Return the licence that a package states: its expression, else its classifiers, else the line of its text."""
    about = package.metadata
    if expression := about.get("License-Expression"):
        return str(expression)
    marks = [line.rpartition("::")[2].strip() for line in about.get_all("Classifier") or [] if line[:9] == "License :"]
    if marks:
        return " AND ".join(_NAMES.get(mark, mark) for mark in marks)
    text = str(about.get("License") or "").strip().split("\n")[0].split("  ")[0]
    return _NAMES.get(text, text)


def not_allowed(licence: str, allowed: frozenset[str] = ALLOWED) -> list[str]:
    """Return what a licence names that is not allowed; with OR, too: who chooses writes that down as an exception."""
    names = [part.strip("() ") for part in re.split(r"\s+(?:AND|OR|WITH)\s+", licence)]
    return [name or "no licence" for name in names if name not in allowed]
