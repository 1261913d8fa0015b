"""The files that megads needs besides its modules: machines, data lists, scripts.

A checkout has them at its top; a wheel has copies of them in ``megads/shipped``, which ``setup.py`` puts there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote

SHIPPED = Path(__file__).parents[1] / "shipped"
"""Only in an installed copy."""


def files_root(env: Mapping[str, str]) -> Path:
    """Return the folder that has ``envs/``, ``data-lists/`` and ``launchers/``: MEGADS_ROOT, else that of this copy."""
    if given := env.get("MEGADS_ROOT"):
        return Path(given)
    return SHIPPED if SHIPPED.is_dir() else SHIPPED.parents[1]


def is_shipped(root: Path) -> bool:
    """Return whether ``root`` is what a wheel installed, next to the modules, and no checkout."""
    return root.resolve() == SHIPPED.resolve()


def pip_install(package: str) -> str:
    """Return the command that installs a package in the tested version, as it works in and outside of a checkout."""
    name = "envs/constraints.txt"
    return f"pip install -c {quote(str(SHIPPED / name)) if SHIPPED.is_dir() else name} {package}"


def packaged(name: str) -> Path:
    """Return the path of a file of this copy, such as ``envs/machines.txt``, in a checkout and where a wheel put it.

    Raises:
        FileNotFoundError: no such file is shipped.
    """
    path = files_root({}) / name
    if not path.exists():
        raise FileNotFoundError(2, "not a file of megads", str(path))
    return path
