"""What a planned run costs in a place: the queue that takes it, its jobs, energy and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from megads.config.schema import RunConfig
from megads.plan.costs.campaign import Campaign, Terms, campaign, work_of
from megads.plan.places.place import Place, Queue


@dataclass(frozen=True)
class Cost:
    """A campaign, and the queue of its jobs; None: the place has none that takes as many hosts."""

    campaign: Campaign
    queue: Queue | None
    walltime_hours: float


def queue_of(place: Place, num_hosts: int) -> Queue | None:
    """Return the queue of ``place`` with most hours of those that take ``num_hosts`` hosts; None: none does."""
    fitting = [each for each in place.queues if each.min_hosts <= num_hosts <= (each.max_hosts or num_hosts)]
    return max(fitting, key=lambda each: each.hours, default=None)


def cost(
    run: RunConfig, place: Place, num_hosts: int, world_size: int, step_s: float, walltime_hours: float = 0.0
) -> Cost:
    """Return what a derived ``run`` with steps of ``step_s`` costs.

    Args:
        walltime_hours: of a job; 0: what the queue allows.

    Raises:
        ConfigError: no step fits a job, or failures let no run end.
    """
    queue = queue_of(place, num_hosts)
    hours = walltime_hours or (queue.hours if queue else 0.0)
    terms = Terms(
        start_s=place.start_s,
        storage_gb_s=place.storage_gb_s,
        host_mtbf_hours=place.host_mtbf_hours,
        walltime_hours=hours,
        host_watts=place.host_watts,
        pue=place.pue,
        grams_per_kwh=place.grams_per_kwh,
    )
    return Cost(campaign(work_of(run, num_hosts, world_size, step_s), terms), queue, hours)
