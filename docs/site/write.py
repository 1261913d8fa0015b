"""Write every page and diagram that is made from the code: ``python -m docs.site.write``; see docs/site/README.md."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

from docs.site import draw, tables
from megads.cli.options.page import page as options_page
from megads.cli.reference import commands_page
from megads.config.reference import settings_page

PAGES: Mapping[str, Callable[[str], str]] = {
    "settings.md": lambda written: settings_page(),
    "commands.md": lambda written: commands_page(),
    "megatron-options.md": options_page,
    **{name: partial(tables.page, name) for name in tables.TABLES},
}
"""Page of docs/ -> what it becomes, from what it is: text besides the tables stays."""


def main() -> None:
    """Write what is not current."""
    for name, make in PAGES.items():
        path = tables.DOCS / name
        written = path.read_text(encoding="utf8")
        if (made := make(written)) != written:
            path.write_text(made, encoding="utf8")
            sys.stdout.write(f"{path}\n")
    draw.main()


if __name__ == "__main__":
    main()
