"""docs/commands.md is what the commands' declarations say."""

from __future__ import annotations

from pathlib import Path

import click

from megads.cli import COMMANDS, HIDDEN
from megads.cli.reference import _section, commands_page

PAGE = Path(__file__).parents[2] / "docs/commands.md"


def test_the_page_is_current():
    assert PAGE.read_text() == commands_page(), "python -m megads.cli.reference > docs/commands.md"


def test_every_command_has_a_section():
    heads = [line.partition(" ")[2] for line in PAGE.read_text().splitlines() if line.startswith("##")]
    assert set(heads) >= {f"megads {name}" for name in COMMANDS.keys() - HIDDEN}
    assert {"megads data preprocess", "megads checkpoint export-hf", "megads plot schedule"} <= set(heads)
    assert not [head for head in heads if head.split()[1] in HIDDEN]


def test_a_section_shows_usage_help_and_options():
    @click.command()
    @click.argument("run")
    @click.option("--kind", type=click.Choice(["a", "b"]), default="a", show_default=True, help="Kind of x_y.")
    @click.option("--secret", hidden=True)
    def show():
        """Show <RUN>; see `a_b`.

        \b
        as it
        stands
        """

    lines = list(_section(show, "show", click.Context(click.Group("megads"), info_name="megads"), 2))
    assert lines[1] == "## megads show"
    assert "megads show [OPTIONS] RUN" in lines
    assert r"Show \<RUN>; see `a_b`." in lines
    assert lines[lines.index("as it") - 1 :][:4] == ["```text", "as it", "stands", "```"]
    assert lines[-1] == r"| `--kind [a\|b]` | Kind of x_y. \[default: a\] |"
