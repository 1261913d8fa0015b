"""What torch may make of a pickle that it reads with ``weights_only``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def nothing_but(named: Sequence[Any] = ()) -> Iterator[None]:
    """Let ``named`` be read, and none of what a package that is loaded has told torch to trust.

    Args:
        named: classes and functions, each alone or with the name that the pickle gives it.
    """
    trusted = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        with torch.serialization.safe_globals(list(named)):
            yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(trusted)
