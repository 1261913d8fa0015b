"""What was predicted for this run: found on rank 0, compared with its steps, and kept with its outcome."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

from megads.config.data_stages.views import steps_vary
from megads.config.kernel_form import form_of
from megads.device.throttling import below_clock
from megads.monitor.log import LOG
from megads.monitor.predicted import Clues, Comparison
from megads.monitor.run_state.outcome import Outcome
from megads.plan.places.place import place_of
from megads.plan.places.same_device import accelerator_key, are_same
from megads.plan.prediction import Prediction, predict, read_prediction
from megads.timing.stragglers import Stragglers, straggler_line
from megads.train.setup import Training


def comparison_of(training: Training) -> Comparison:
    """Return what compares the steps of ``training`` with what was predicted for them.

    The launcher predicts where it knows the device. Where it does not, or the device here is another one, the
    prediction is made now, by the name that torch reports.
    """
    prediction, problem = read_prediction(training.run_dir)
    if problem:
        LOG.warning("%s", problem)
    name = training.vendor.device_name(training.device)
    if training.device.type != "cpu" and not (prediction.step_s and are_same(name, prediction.device)):
        prediction = _predicted_here(training, prediction, name)
        if line := prediction.line():
            LOG.info("step     %s", line)
    return Comparison(prediction, training.run.train.global_batch)


def _predicted_here(training: Training, given: Prediction, name: str) -> Prediction:
    run = training.run
    key = accelerator_key(name, training.vendor.units(training.device))
    if not key or run.finetune.task or steps_vary(run) or not run.train.train_iters:
        return Prediction(given.memory_bytes)
    return predict(run, training.groups.grid.world_size, given.memory_bytes, place_of(key, root=None))


def report(line: str) -> None:
    """Log what :meth:`Comparison.line` returns, if there is something to say."""
    if line:
        LOG.info("plan     %s", line)


def clues_of(training: Training, found: Stragglers | None) -> Clues:
    """Return what else may slow the steps of ``training`` down; ``found`` by a comparison of all ranks."""
    straggler = straggler_line(found.stragglers, training.hosts) if found is not None and found.stragglers else ""
    form = form_of(training.run, training.groups.grid.world_size, training.device.type)
    return Clues(straggler, partial(below_clock, training.vendor, training.device), form.kind == "compiled")


def recorded(training: Training, comparison: Comparison, outcome: Outcome) -> Outcome:
    """Return ``outcome`` with what was predicted and what was measured."""
    run, vendor = training.run, training.vendor
    memory_bytes = vendor.memory_bytes(training.device)
    measured = comparison.measured(run.train.global_batch * run.sample_tokens, memory_bytes)
    return replace(
        outcome,
        device=vendor.device_name(training.device),
        world_size=training.groups.grid.world_size,
        per_host=max(Counter(training.hosts).values(), default=1),
        predicted=comparison.predicted(),
        measured={"memory_bytes": memory_bytes} if steps_vary(run) else measured,
    )
