"""On how many hosts a global batch can be shared out: the queue decides the number of hosts, and not the batch."""

from __future__ import annotations

from megads.text.plural import listed

MOST_NAMED = 4


def fitting_hosts(total: int, micro: int, model_ranks: int, ranks_per_host: int, most: int) -> list[int]:
    """Return the numbers of hosts up to ``most`` on which ``total`` samples are whole micro-batches of every DP rank.

    Args:
        micro: samples of a micro-batch; 1 where it may be lowered.
        model_ranks: TP x PP x SP.
    """
    found = []
    for hosts in range(1, most + 1):
        data, rest = divmod(hosts * ranks_per_host, model_ranks)
        if data and not rest and total % (micro * data) == 0:
            found.append(hosts)
    return found


def counts_that_fit(total: int, micro: int, model_ranks: int, ranks_per_host: int, hosts: int) -> str:
    """Return the numbers of hosts, or of ranks of a single host, that the batch fits, the nearest ones; in words."""
    if hosts > 1:
        fitting, noun = fitting_hosts(total, micro, model_ranks, ranks_per_host, 2 * hosts), "host"
        now = hosts
    else:
        fitting, noun = fitting_hosts(total, micro, model_ranks, 1, 2 * ranks_per_host), "rank"
        now = ranks_per_host
    nearest = sorted(sorted(fitting, key=lambda count: (abs(count - now), count))[:MOST_NAMED])
    if not nearest:
        return f"a job of another number of {noun}s"
    return f"a job of {listed([str(count) for count in nearest], 'or')} {noun}{'' if nearest == [1] else 's'}"
