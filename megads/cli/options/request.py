"""The one place where a command line and the environment become an :class:`megads.launch.request.TrainRequest`."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megads.launch.request import TrainRequest


def checkout() -> Path:
    """Return the checkout whose envs/ and data-lists/ are used: MEGADS_ROOT, else this file's."""
    return Path(os.environ.get("MEGADS_ROOT") or Path(__file__).parents[3])


def _without_local_rank(words: list[str]) -> tuple[str, ...]:
    """Return ``words`` without the number that DeepSpeed's launcher gives to every rank."""
    names = ("--local_rank", "--local-rank")
    after = {number + 1 for number, word in enumerate(words) if word in names}
    return tuple(
        word for number, word in enumerate(words) if number not in after and word.partition("=")[0] not in names
    )


def ask_of(preset: str | None, pairs: tuple[str, ...], flags: tuple[tuple[str, str], ...] = ()) -> TrainRequest:
    """Return what the user asked for: this command line in this environment."""
    from megads.launch.request import TrainRequest

    return TrainRequest(
        preset=preset,
        pairs=pairs,
        env=dict(os.environ),
        hostname=socket.gethostname(),
        root=checkout(),
        python=sys.executable,
        words=_without_local_rank(sys.argv[1:]),
        flags=flags,
    )
