"""What only MPI itself can tell: the number of ranks, where the launcher sets no variable for it.

mpi4py is no requirement. It is imported here alone and late: to start MPI in a process
costs time, and fails where the library does not fit the launcher.
"""

from __future__ import annotations

import importlib
import sys

from megads.errors import LaunchError


def ask_mpi_for_size(rank: int, local_size: int, family: str) -> int:
    """Return the number of ranks as MPI counts them; call :func:`finish_mpi` before a good end.

    Args:
        rank: what the launcher's variables say this process is.
        local_size: how many of them are on this host, 0 where they do not say.
        family: the launcher's name, for the error message.

    Raises:
        LaunchError: without mpi4py or an MPI that it can load; when MPI says otherwise.
    """
    try:
        world = importlib.import_module("mpi4py.MPI").COMM_WORLD
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise LaunchError(
            f"{family} says this is rank {rank} but not the world size; start the ranks with megads launch or set "
            f"MEGADS_NUM_RANKS, or install an mpi4py for its MPI ({reason})"
        ) from None
    # A process whose MPI does not fit takes itself for the only one, and so for rank 0.
    if world.rank != rank or world.size < local_size:
        raise LaunchError(
            f"{family} says this is rank {rank}, mpi4py says rank {world.rank} of {world.size}: it uses another "
            "MPI than the launcher's; set MEGADS_NUM_RANKS or start the ranks with megads launch"
        )
    return int(world.size)


def finish_mpi() -> None:
    """End MPI where :func:`ask_mpi_for_size` began it: a rank that leaves without is taken for a failed one.

    Every rank must call it; a rank that fails must not.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()
