"""docs/hangs.md quotes what the program says, and names the stages that there are."""

import re
from pathlib import Path

import pytest

from tests.e2e.test_doctor import STAGES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "hangs.md").read_text()


@pytest.mark.parametrize(
    "words",
    [
        *("no answer within", "slowest", "no answer at MASTER_ADDR", "all use device", "the part of rank"),
        *("did not arrive", "did not answer", "all ranks are in the same place", "did not join before the timeout"),
        *("killed by", "stopped by", "lost another rank", "the ranks ended without an outcome", "no progress for"),
        *("waiting for", "NOT EQUAL", "below half the median"),
    ],
)
def test_what_the_page_quotes_is_said(words):
    assert words in " ".join(PAGE.split())
    assert any(words in path.read_text() for path in (ROOT / "megads").rglob("*.py"))


def test_every_stage_is_in_the_table():
    rows = re.findall(r"^\| ([a-z][^|]*?) \| ", PAGE, re.MULTILINE)
    named = {name for row in rows for name in row.split(", ")}
    expected = {"speed: ..." if name.startswith("speed") else name for name in STAGES}
    assert expected <= named
