"""Ends that were published by those who had them (``recorded.tsv``): what was printed, and the cause to be given.

Each row is the shortest text of a report that names its cause, with the report. GH is github.com, EZ saforem2/ezpz,
AG the reports of AuroraGPT; other sources are the programs that print these words, LAUNCH what schedulers did when
they were tried. Tabs separate the columns, which the first line names.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Recorded(NamedTuple):
    """A row; ``left_s`` is what was left of the wall time, None: unknown, ``host`` the host that the text names."""

    source: str
    cause: str
    exit_code: int
    left_s: float | None
    host: str
    aborted_by: int
    said: str


def _row(line: str) -> Recorded:
    source, cause, code, left, host, number, said = line.split("\t")
    return Recorded(
        source, cause, int(code), float(left) if left else None, host, int(number or 0), said.replace("\\n", "\n")
    )


RECORDED = [_row(line) for line in Path(__file__).with_name("recorded.tsv").read_text().splitlines()[1:]]
