"""Pictures of a planned run: memory by kind, time by kind, speed, the pipeline's timeline; as PNG and as a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megads.errors import ConfigError
from megads.storage.open_file import write_cure
from megads.storage.whole_file import whole_file

if TYPE_CHECKING:
    from megads.plan.search.hosts import Row
    from megads.plan.search.search import Found


def draw(found: Found, path: Path, days: Sequence[float] = ()) -> None:
    """Draw the layouts that a search proposes into the PNG file ``path``.

    Args:
        days: of the whole run with each of the best layouts, where they are known.

    Raises:
        ConfigError: the file cannot be written.
    """
    from megads.monitor.plots.plan.data import planned_layouts
    from megads.monitor.plots.plan.picture import save_plan

    _written(path, lambda file: save_plan(planned_layouts(found, days), file))


def page(found: Found, path: Path, days: Sequence[float] = ()) -> None:
    """Write what :func:`draw` does, with all numbers, as the HTML file ``path``.

    Raises:
        ConfigError: the file cannot be written.
    """
    from megads.monitor.plots.plan.data import planned_layouts
    from megads.monitor.plots.plan.html_page import save_plan_page

    _written(path, lambda file: save_plan_page(planned_layouts(found, days), file))


def draw_hosts(rows: Sequence[Row], path: Path) -> None:
    """Draw the speed of the best layouts over numbers of hosts into the PNG file ``path``.

    Raises:
        ConfigError: the file cannot be written.
    """
    from megads.monitor.plots.plan.data import planned_hosts
    from megads.monitor.plots.plan.picture import save_plan

    _written(path, lambda file: save_plan(planned_hosts(rows), file))


def page_hosts(rows: Sequence[Row], path: Path) -> None:
    """Write what :func:`draw_hosts` does as the HTML file ``path``.

    Raises:
        ConfigError: the file cannot be written.
    """
    from megads.monitor.plots.plan.data import planned_hosts
    from megads.monitor.plots.plan.html_page import save_plan_page

    _written(path, lambda file: save_plan_page(planned_hosts(rows), file))


def _written(path: Path, save: Callable[[Path], None]) -> None:
    try:
        with whole_file(path) as file:
            save(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; {write_cure(error, 'pass another file')}") from None
