"""The command of tests/e2e, and its cache of the demo corpus."""

from tests.e2e.conftest import cache, megads

__all__ = ["cache", "megads"]
