"""What a variable or an option gives the settings of a preset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megads.config.sources.resolve import resolve
from megads.config.tree import value_of


def given(names: Sequence[str], flags: dict[str, str] | None = None, **env: str) -> tuple[Any, ...]:
    """Return the values of the settings ``names`` with these options and variables."""
    run = resolve("tiny", env=env, flags=tuple((flags or {}).items()), machine="generic").run
    return tuple(value_of(run, name) for name in names)
