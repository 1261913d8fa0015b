"""The one place where a command line and the environment become an :class:`megads.launch.ask.Ask`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megads.launch.ask import Ask


def checkout() -> Path:
    """Return the checkout whose envs/ and data-lists/ are used: MEGADS_ROOT, else this file's."""
    return Path(os.environ.get("MEGADS_ROOT") or Path(__file__).parents[2])


def ask_of(preset: str | None, pairs: tuple[str, ...], flags: tuple[tuple[str, str], ...] = ()) -> Ask:
    """Return what the user asked for: this command line in this environment."""
    from megads.launch.ask import Ask

    return Ask(
        preset=preset,
        pairs=pairs,
        env=dict(os.environ),
        hostname=socket.gethostname(),
        root=checkout(),
        python=sys.executable,
        words=tuple(sys.argv[1:]),
        flags=flags,
    )
