"""``megads optimizers`` and the table of docs/optimizers.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from megads.cli.optimizers import markdown_table
from megads.config.optimizers import OPTIMIZERS

ROOT = Path(__file__).parents[2]


def test_the_document_has_the_table():
    text = (ROOT / "docs/optimizers.md").read_text()
    table = text.partition("<!-- megads optimizers --markdown -->\n")[2].partition("<!-- end -->")[0]
    assert table == markdown_table(list(OPTIMIZERS.values())), "run `megads optimizers --markdown`"


def test_the_command_lists_them_all_without_torch():
    code = (
        "import sys; from megads.cli import main\ntry: main(['optimizers'])\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for row in OPTIMIZERS.values():
        assert f"\n{row.name}: {row.rule}\n  library  {row.library}\n" in f"\n{done.stdout}"
