"""The command in processes of its own."""

from __future__ import annotations

from tests.data.corpus.conftest import megads, zygote

__all__ = ["megads", "zygote"]
