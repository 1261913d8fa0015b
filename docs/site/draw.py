"""Draw the diagrams of the documentation: ``python -m docs.site.draw`` writes docs/diagrams/*.svg."""

from __future__ import annotations

import sys
from pathlib import Path

from docs.site.drawings import checkpoint, life, ranks

FOLDER = Path(__file__).parents[1] / "diagrams"
DRAWINGS = {"ranks.svg": ranks.draw, "checkpoint.svg": checkpoint.draw, "life-of-a-run.svg": life.draw}


def main() -> None:
    """Write every diagram."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw(), encoding="utf8")
        sys.stdout.write(f"{FOLDER / name}\n")


if __name__ == "__main__":
    main()
