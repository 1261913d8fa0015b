"""The diagrams of the documentation, docs/diagrams/*.svg; ``docs.site.write`` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.site.drawings import checkpoint, life, ranks

FOLDER = Path(__file__).parents[1] / "diagrams"
DRAWINGS = {"ranks.svg": ranks.draw, "checkpoint.svg": checkpoint.draw, "life-of-a-run.svg": life.draw}


def main() -> None:
    """Write every diagram that is not current."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        path, made = FOLDER / name, draw()
        if not path.is_file() or path.read_text(encoding="utf8") != made:
            path.write_text(made, encoding="utf8")
            sys.stdout.write(f"{path}\n")
