"""``python -m megads`` is the ``megads`` command."""

from megads.cli import main

main()
