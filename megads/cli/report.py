"""``megads report``: jobs, time, losses, events, energy and cost of runs, on one page."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from megads.monitor.plots.drawing import Drawing
    from megads.monitor.report.campaign import Campaign

NAME = "report.html"
POINTS = 4000  # of all runs together, for each key of the page
FEWEST = 150  # of one curve


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="FILE.html", type=click.Path(path_type=Path), help="Default: RUN/report.html.")
@click.option("--price", type=click.FloatRange(min=0), default=0.0, metavar="X", help="Cost of an hour of one host.")
@click.option("--json", "as_json", is_flag=True, help="Print exact values; no page without -o.")
@click.option("--text", "only_text", is_flag=True, help="Print the report; no page without -o.")
def report(runs: tuple[Path, ...], output: Path | None, price: float, as_json: bool, only_text: bool) -> None:
    """Report what runs did with their time: jobs, hosts, losses, events, energy, cost.

    RUN is a run folder, or a folder that holds runs. Several runs get one table and one page (report.html here).
    """
    from megads.errors import ConfigError
    from megads.monitor.plots.source import names_of_folders
    from megads.monitor.report.campaign import read_campaign
    from megads.monitor.report.page import report_page, save_report
    from megads.monitor.report.text import RUNS_HEAD, as_data, lines_of, run_rows, table

    folders = _folders(runs)
    campaigns, names = [_with_hosts(read_campaign(folder)) for folder in folders], names_of_folders(folders)
    if as_json:
        found = [as_data(each, price) for each in campaigns]
        click.echo(json.dumps(found[0] if len(found) == 1 else found, indent=1))
    else:
        lines = lines_of(campaigns[0], price) if len(names) == 1 else table(run_rows(campaigns, names), RUNS_HEAD)
        click.echo("\n".join(lines))
    if output is None:
        if as_json or only_text:
            return
        output = folders[0] / NAME if len(folders) == 1 else Path(NAME)
    try:
        save_report(report_page(campaigns, names, _drawing(folders, names), price), output)
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror}; -o FILE.html names another place") from None
    click.echo(f"{'page':10} {output}", err=as_json)


def _with_hosts(campaign: Campaign) -> Campaign:
    """Return a campaign with what `megads nodes` knows of its hosts."""
    from dataclasses import replace

    from megads.launch.nodes.memory import NodeMemory

    machine = campaign.settings.get("machine")
    records = NodeMemory.of(machine, os.environ).records() if isinstance(machine, str) else []
    bad = [f"{each.host} {each.why}" for each in records if each.host in campaign.hosts]
    return replace(campaign, bad_hosts=tuple(bad))


def _folders(given: Sequence[Path]) -> list[Path]:
    """Return the run folders that are meant: a folder that holds runs stands for all of them."""
    from megads.errors import ConfigError
    from megads.monitor.run_state.runs import find_runs

    found: list[Path] = []
    for path in given:
        if not path.is_dir():
            reason = "is a file" if path.exists() else "not found"
            raise ConfigError(f"{path}: {reason}; pass a run's folder, `megads runs` lists what is in runs/")
        try:
            folders = find_runs(path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be listed: {error.strerror}; pass a run's folder") from None
        if not folders:
            raise ConfigError(f"{path}: no run here; pass a run's folder, or a folder that holds runs")
        found += folders
    return list(dict.fromkeys(found))


def _drawing(folders: Sequence[Path], names: Sequence[str]) -> Drawing | None:
    """Return the curves of the runs that have some, None without any."""
    from megads.errors import ConfigError
    from megads.monitor.plots.drawing import draw
    from megads.monitor.plots.panels import is_wanted, wanted
    from megads.monitor.plots.source import read_run

    patterns, read = wanted([]), []
    for folder, name in zip(folders, names, strict=True):
        try:
            read.append(read_run(folder, lambda key: is_wanted(key, patterns), name))
        except ConfigError:  # it has no step yet; the report says so
            continue
    try:
        return draw(read, most=max(FEWEST, POINTS // len(read))) if read else None
    except ConfigError:  # rows of other kinds only
        return None
