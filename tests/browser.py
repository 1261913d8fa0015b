"""A headless Chromium that has no network."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# Nothing of its own either: no updates, no reports, no start page.
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--proxy-server=127.0.0.1:9",
    "--virtual-time-budget=2000",
)


def chromium() -> str:
    """Return the program; skip the test where there is none, unless nothing may be skipped."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and not os.environ.get("MEGADS_REQUIRE_ALL"):
        pytest.skip("chromium not installed (apt-get install chromium)")
    assert found, "chromium not installed (apt-get install chromium)"
    return found


def browse(
    page: Path | str, folder: Path, *options: str, address: str = "", size: tuple[int, int] = (1200, 900)
) -> str:
    """Open a page in a new browser and return what it wrote, for ``--dump-dom`` the page after its scripts.

    Args:
        page: HTML file, or the address of a server on this host.
        folder: for the browser's own files.
        options: of Chromium.
        address: what follows ``#``.
        size: of the window, in pixels.
    """
    own = folder / "browser"
    shutil.rmtree(own, ignore_errors=True)
    words = [*QUIET, f"--user-data-dir={own}", f"--window-size={size[0]},{size[1]}", *options]
    env = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(
        [chromium(), *words, f"{page if isinstance(page, str) else page.as_uri()}#{address}"],
        capture_output=True,
        text=True,
        timeout=120,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
