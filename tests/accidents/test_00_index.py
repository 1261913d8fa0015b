"""Every replayed accident is described where the user looks, and has the number of its row in the list of accidents."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/campaigns.md"


def test_docs_campaigns_names_every_file_and_no_other():
    files = {path.name for path in HERE.glob("test_*.py")} - {Path(__file__).name}
    assert all(re.fullmatch(r"test_\d\d_\w+\.py", name) for name in files), files
    named = set(re.findall(r"`tests/accidents/(test_\w+\.py)`", PAGE.read_text()))
    assert named == files
