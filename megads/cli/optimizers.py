"""``megads optimizers``: what OPT may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from megads.config.optimizers import Optimizer


@click.command()
@click.option("--markdown", is_flag=True, help="The table of docs/optimizers.md.")
def optimizers(markdown: bool) -> None:
    """List the optimizers: what each does, whose code it is, where it runs, what it keeps and what it reads."""
    from megads.config.optimizers import OPTIMIZERS

    if markdown:
        click.echo(markdown_table(list(OPTIMIZERS.values())), nl=False)
        return
    for row in OPTIMIZERS.values():
        click.echo(f"{row.name}: {row.rule}")
        for what, value in facts(row).items():
            click.echo(f"  {what:8} {value}")


COLUMNS = ("library", "devices", "ZeRO", "DTYPE", "TP", "state", "needs", "settings")


def facts(row: Optimizer) -> dict[str, str]:
    """Return what there is to know of an optimizer, by column."""
    # One that never runs has neither devices nor stages.
    runs = not row.never
    values = (
        row.library,
        where(row),
        ", ".join(str(stage) for stage in row.zero_stages) if runs else "-",
        "fp32, bf16, fp16" if runs else "-",
        ("gathers whole parameters" if row.is_whole else "steps its shards") if runs else "-",
        f"{4 * row.floats:g} bytes" if runs else "-",
        "; ".join(needs(row)) or "-",
        " ".join(row.settings),
    )
    return dict(zip(COLUMNS, values, strict=True))


def where(row: Optimizer) -> str:
    """Return the devices of an optimizer, in words."""
    from megads.config.optimizers import EVERYWHERE

    if row.never:
        return f"none ({row.never}); OPT={row.instead}"
    if set(row.devices) == set(EVERYWHERE):
        return "all"
    return f"{', '.join(row.devices)}; elsewhere OPT={row.instead}"


def needs(row: Optimizer) -> list[str]:
    """Return what it needs apart from torch and DeepSpeed."""
    packages = [f"{need.module} {need.version}".strip() for need in row.needs]
    return [
        *packages,
        *([f"DeepSpeed's op {row.op}"] if row.op else []),
        *(["OFFLOAD_OPTIMIZER=cpu"] if row.on_host else []),
        *(["no offload"] if not row.offload else []),
    ]


def markdown_table(rows: list[Optimizer]) -> str:
    """Return the table as Markdown."""
    lines = [f"| OPT | what it does | {' | '.join(COLUMNS)} |", f"|{' --- |' * (2 + len(COLUMNS))}"]
    for row in rows:
        found = facts(row)
        found["library"] = f"`{found['library']}`"
        found["settings"] = " ".join(f"`{name}`" for name in row.settings)
        lines.append(f"| `{row.name}` | {row.rule} | {' | '.join(found.values())} |")
    return "\n".join(lines) + "\n"
