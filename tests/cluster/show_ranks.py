"""Run by real launchers: one line of JSON with this process's rank, as its variables and, with ``--mpi``, MPI say."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from megads.cluster.mpi import finish_mpi
from megads.cluster.ranks import find_ranks
from megads.errors import LaunchError

try:
    shown = asdict(find_ranks())
except LaunchError as error:
    shown = {"error": str(error)}
if "--mpi" in sys.argv:
    from mpi4py import MPI

    host = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    shown["mpi"] = [MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, host.rank, host.size]
shown["node"] = os.environ.get("SLURM_NODEID", "")
if "--name" in sys.argv:
    shown["name"] = sys.argv[sys.argv.index("--name") + 1]
# One write of one line: launchers join the lines of ranks as they come.
sys.stdout.write(json.dumps(shown) + "\n")
sys.stdout.flush()
finish_mpi()
