"""``python -m megads`` is the ``megads`` command; what it lacks to run is one line. Runs on any Python 3."""

import os
import sys


def _fail(text):
    sys.stderr.write(f"megads: {text}\n")
    sys.exit(2)


if sys.version_info < (3, 10):  # noqa: UP036
    here = f"{sys.executable} is {sys.version_info[0]}.{sys.version_info[1]}"
    _fail(f"Python 3.10 or later is needed and {here}; ./megads.sh finds one, or set MEGADS_PYTHON")

try:
    from megads.cli import main

    main()
except ModuleNotFoundError as error:
    name = (error.name or "").partition(".")[0]
    if name in ("", "megads") or name in sys.stdlib_module_names:
        raise
    root = __file__.rpartition("/megads/")[0] or "."
    lacks, install = f"{sys.executable} has no package {name}", f"{sys.executable} -m pip install"
    if os.path.exists(f"{root}/megads.sh"):  # a checkout
        _fail(f"{lacks}; use ./megads.sh, which makes an environment, or {install} -e {root}")
    _fail(f"{lacks}; {install} {name}")
