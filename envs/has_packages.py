"""Exit 0 when this Python is new enough and has the packages of setup.cfg; else name the first that is missing.

Run as ``python envs/has_packages.py [EXTRA...]``, possibly by a Python that is too old for megads. With
``--no-torch`` it may be a Python that starts ranks and is none of theirs.
With ``--found`` it prints what is there of them, as ``name==version``, instead. Only metadata is
read: importing torch to see whether it is there takes seconds.
"""

from __future__ import annotations

import configparser
import contextlib
import operator
import re
import sys
from pathlib import Path

_COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def missing(extras: list[str], *, torch: bool = True) -> str:
    """Return the first requirement that is not met, or "" when all are; without ``torch`` that one is not asked for."""
    if sys.version_info < (3, 10):  # noqa: UP036  a user's Python may be any
        return "python >= 3.10"
    from importlib.metadata import PackageNotFoundError, version

    for line in _wanted(extras):
        name = re.match(r"[\w.-]+", line)[0]
        if name == "torch" and not torch:
            continue
        try:
            found = version(name)
        except PackageNotFoundError:
            return line
        for sign, bound in re.findall(r"(>=|<=|==|!=|<|>)\s*([\d.]+)", line):
            if not _COMPARE[sign](_numbers(found), _numbers(bound)):
                return f"{line}, found {found}"
    return ""


def found() -> list[str]:
    """Return ``name==version`` of every requirement that is installed."""
    from importlib.metadata import PackageNotFoundError, version

    lines = []
    for line in _wanted([]):
        name = re.match(r"[\w.-]+", line)[0]
        with contextlib.suppress(PackageNotFoundError):
            lines.append(f"{name}=={version(name)}")
    return lines


def _wanted(extras: list[str]) -> list[str]:
    config = configparser.ConfigParser()
    config.read(Path(__file__).resolve().parents[1] / "setup.cfg")
    wanted = config["options"]["install_requires"].split("\n")
    for extra in extras:
        wanted += config["options.extras_require"][extra].split("\n")
    return [line for line in wanted if line]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.match(r"[\d.]*", text)[0].split(".") if number]


if __name__ == "__main__":
    if sys.argv[1:] == ["--found"]:
        sys.stdout.write("".join(f"{line}\n" for line in found()))
        sys.exit(0)
    lacking = missing([word for word in sys.argv[1:] if word != "--no-torch"], torch="--no-torch" not in sys.argv)
    sys.stderr.write(lacking + "\n" if lacking else "")
    sys.exit(1 if lacking else 0)
