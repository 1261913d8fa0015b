"""``python -m megads.evaluate.lm_eval``: lm-eval's own command, with the model ``megads``."""

import sys

from lm_eval.__main__ import cli_evaluate

import megads.evaluate.lm_eval.model  # noqa: F401 - registers it
from megads.errors import MegadsError

if __name__ == "__main__":
    try:
        cli_evaluate()
    except MegadsError as error:
        sys.stderr.write(f"megads: {error}\n")
        sys.exit(2)
