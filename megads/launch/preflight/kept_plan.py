"""What a run keeps of its own checkpoint although its job is another one: the global batch and the planned length.

The queue decides how many hosts a job gets. A batch that follows from them would follow the queue, and the run would
be another experiment after each job.
"""

from __future__ import annotations

from typing import Any

from megads.config.schedule.batches import BatchSchedule
from megads.config.setting import Origin
from megads.config.sources.presets import Layer
from megads.config.sources.resolve import PLANNED, Resolved
from megads.config.tree import env_name
from megads.errors import ConfigError
from megads.launch.preflight.checkpoint_start import StartPoint

_GLOBAL, _STEPS, _MICRO = "train.global_batch", "train.grad_acc_steps", "train.micro_batch"
_USER = ("config", "env", "cli")


def kept_of(resolved: Resolved, start_point: StartPoint | None) -> Layer | None:
    """Return the settings that a resumed run takes from its checkpoint; None where it has them already.

    ``GLOBAL_BATCH`` unless the user gives it; the accumulation then follows from the ranks of this job. The
    micro-batch, where dropout masks depend on it, nobody gives one and it fits. The planned length.

    Args:
        resolved: derived for the ranks of this job.

    Raises:
        ConfigError: the user gives the accumulation, and with it the batch would be another one.
    """
    if start_point is None or not start_point.start.is_own or not start_point.taken.progress:
        return None
    before, run = start_point.found.manifest.settings.get("train", {}), resolved.run
    if run.train.evaluate_only or not before.get("global_batch"):
        return None
    origin = Origin("checkpoint", str(start_point.found.path))
    kept = _batch(resolved, before, origin)
    kept |= _micro_batch(resolved, before, int(kept.get(_GLOBAL, run.train.global_batch)))
    planned = int(before.get("planned_samples", 0))
    if planned and not any(_is_users(resolved, name) for name in PLANNED) and run.train.planned_samples != planned:
        sizes = BatchSchedule.parse(run.train.rampup_batch_size, int(kept.get(_GLOBAL, run.train.global_batch)))
        if sizes.samples_after(run.train.train_iters) <= planned:
            kept["train.planned_samples"] = planned
    order = start_point.found.manifest.settings.get("data", {}).get("sample_order", "planned")
    if order != run.data.sample_order and not _is_users(resolved, "data.sample_order"):
        kept["data.sample_order"] = order
    return Layer(origin, kept) if kept else None


def _batch(resolved: Resolved, before: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """Return the global batch of before where the run has another one that nobody gave."""
    train, was, data = resolved.run.train, int(before["global_batch"]), resolved.run.parallel.data
    if train.global_batch == was or _is_users(resolved, _GLOBAL):
        return {}
    if _is_users(resolved, _STEPS):
        whole, rest = divmod(was, train.micro_batch * data)
        steps = f"GRAD_ACC_STEPS={whole} or " if not rest else ""
        raise ConfigError(
            f"{env_name(_STEPS)}={train.grad_acc_steps} ({resolved.origins[_STEPS]}) x MICRO_BATCH={train.micro_batch} "
            f"x DP={data} is a global batch of {train.global_batch}, the run so far has {was} ({origin}); unset "
            f"GRAD_ACC_STEPS or use {steps}GLOBAL_BATCH={was} to keep it, GLOBAL_BATCH={train.global_batch} without "
            "GRAD_ACC_STEPS to change it"
        )
    return {_GLOBAL: was}


def _micro_batch(resolved: Resolved, before: dict[str, Any], total: int) -> dict[str, Any]:
    """Return the micro-batch of before where dropout masks depend on it, nobody gave one, and it fits."""
    run, micro = resolved.run, int(before.get("micro_batch", 0))
    has_dropout = run.model.hidden_dropout or run.model.attention_dropout
    if not micro or not has_dropout or micro == run.train.micro_batch or _is_users(resolved, _MICRO):
        return {}
    return {_MICRO: micro} if total % (micro * run.parallel.data) == 0 else {}


def _is_users(resolved: Resolved, name: str) -> bool:
    return resolved.origins[name].layer in _USER
