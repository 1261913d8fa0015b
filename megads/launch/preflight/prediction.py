"""What a run is expected to take, before it starts. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from megads.config.data_stages.views import steps_vary
from megads.config.schema import RunConfig
from megads.config.sources.presets import read_machine
from megads.errors import ConfigError
from megads.launch.schedulers.allocation import Allocation
from megads.monitor.measured import read_measured
from megads.plan.memory import Memory
from megads.plan.places.place import Place, place_of
from megads.plan.places.same_device import is_cpu
from megads.plan.prediction import Prediction, predict
from megads.plan.time.anchor import anchored
from megads.plan.time.measured import MeasuredRun
from megads.text.plural import plural


def predict_run(
    run: RunConfig, allocation: Allocation, memory: Memory, env: Mapping[str, str], root: Path
) -> Prediction:
    """Return what is expected of a derived ``run`` on its hosts; no step where nothing is known of their devices.

    A task has examples of any length, stages of data may have, and a sweep or an evaluation no steady step.

    Raises:
        ConfigError: PLAN_ANCHOR names what cannot correct the prediction.
    """
    if run.finetune.task or run.train.evaluate_only or run.lr_finder.enabled or steps_vary(run):
        return Prediction(memory.total)
    return predict(run, allocation.world_size, memory.total, _place(run, allocation, env, root))


def _place(run: RunConfig, allocation: Allocation, env: Mapping[str, str], root: Path) -> Place | None:
    on_cpu = run.machine == "cpu" or env.get("MEGADS_DEVICE") == "cpu"
    is_known = not on_cpu and read_machine(run.machine, root).facts.plan.accelerator
    place = place_of(run.machine, root=root) if is_known else None
    if not run.times.anchor:
        return place
    try:
        return _anchored(place, run, allocation, on_cpu=on_cpu)
    except ConfigError as error:
        raise ConfigError(f"PLAN_ANCHOR: {error}") from None


def _anchored(place: Place | None, run: RunConfig, allocation: Allocation, *, on_cpu: bool) -> Place:
    measured = read_measured(Path(run.times.anchor))
    if on_cpu and not is_cpu(measured.device):
        raise ConfigError(f"{run.times.anchor}: measured on {measured.device}, and this run is on CPUs")
    ranks = allocation.ranks_per_host
    if isinstance(measured, MeasuredRun) and is_cpu(measured.device) and measured.per_host != ranks:
        raise ConfigError(
            f"{run.times.anchor}: measured with {plural(measured.per_host, 'rank')} on a host, which "
            f"share its cores, and this run has {ranks}; anchor on a run with {ranks}, or unset it"
        )
    return anchored(place, measured)
