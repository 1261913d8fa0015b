"""``python -m megads.evaluate.lm_eval``: lm-eval's own command, with the model ``megads``."""

import os
import sys

from lm_eval.__main__ import cli_evaluate

from megads.cluster.ranks import find_ranks
from megads.errors import MegadsError
from megads.evaluate.lm_eval.model import OPEN  # registers the model, too
from megads.inference.generate import leave


def main() -> None:
    """Run the command; of a MegadsError rank 0 prints one line, and the exit code is 2."""
    error: MegadsError | None = MegadsError("rank 0 has failed")
    try:
        cli_evaluate()
        error = None
    except MegadsError as problem:
        error = problem
        if find_ranks(os.environ).rank == 0:
            sys.stderr.write(f"megads: {problem}\n")
    finally:
        while OPEN:
            OPEN.pop().close(error)
    if error is not None:
        sys.exit(2)
    leave()


if __name__ == "__main__":
    main()
