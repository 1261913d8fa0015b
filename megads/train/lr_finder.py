"""Find a learning rate: some steps with rates from small to large, on the run's own model, data and layout.

It leaves only a table and a picture: the ranks work in a folder of their own
next to what a training run of the same name has, and save no checkpoint.
"""

from __future__ import annotations

from pathlib import Path

from megads.checkpoint.resume.progress import Progress
from megads.config.schedule.batches import BatchSchedule
from megads.config.schedule.rates import Schedule
from megads.errors import EXIT_DONE, EXIT_STOPPED
from megads.monitor.log import LOG
from megads.monitor.run_state.outcome import Outcome
from megads.monitor.sweep import Sweep
from megads.train.fault.stop import StopRequest
from megads.train.fault.watchdog import END, Watchdog
from megads.train.setup import Training

NAME = "lr_finder"  # of the table and the picture, in the run folder


def find_rate(training: Training, stop: StopRequest, watch: Watchdog | None = None) -> Outcome:
    """Sweep the learning rate, and have rank 0 report the result. Collective.

    A stop request ends the sweep; what it has found until then is reported.
    """
    sweep = Sweep(training.run.lr_finder)
    why = run_sweep(training, sweep, stop, watch)
    if watch is not None:
        watch.enter(END)
    if training.groups.rank == 0:
        report(sweep, training.run_dir.parent, training.run.name, why)
    steps = len(sweep.points)
    if why:
        return Outcome(EXIT_STOPPED, f"{why}; a learning-rate sweep saves nothing", steps, "stopped")
    return Outcome(EXIT_DONE, "done", steps, "done")


def run_sweep(training: Training, sweep: Sweep, stop: StopRequest, watch: Watchdog | None = None) -> str:
    """Do the steps of ``sweep``; return why it was given up, empty: it is over. Collective."""
    run, groups = training.run, training.groups
    sizes, weight_decay = BatchSchedule.of(run), Schedule.of(run).weight_decay.at(0)
    done = training.progress
    if run.train.train_iters - done.iteration < run.lr_finder.iters:
        done = Progress()  # too near the end of the planned data: what was seen serves as well
    consumed = done.consumed_samples
    with training.batches("train", consumed) as batches:
        for iteration in range(done.iteration + 1, run.train.train_iters + 1):
            if watch is not None:
                watch.iteration = iteration
                watch.enter("step")
            batch = sizes.batch_at(consumed)
            parts = [next(batches).to(training.device) for _ in range(training.micro_batches_of(batch))]
            rate = sweep.rate
            result = training.engine.train_step(parts, rate, first_sample=consumed, weight_decay=weight_decay)
            consumed += batch
            # In half precision the first scales may overflow at any rate: such a step says nothing of it.
            if not result.skipped:
                sweep.add(float(result.loss))
                if groups.rank == 0:
                    last = sweep.points[-1]
                    of = f"{len(sweep.points):5d}/{run.lr_finder.iters}"
                    LOG.info("sweep %s | lr %.3e | loss %.4f | smoothed %.4f", of, rate, last.loss, last.smoothed)
            if sweep.is_over:
                return ""
            if why := stop.agreed():
                return why
    return ""


def report(sweep: Sweep, folder: Path, name: str, why: str = "") -> None:
    """Write the table and the picture into ``folder``, and say what they show."""
    table, picture = folder / f"{NAME}.csv", folder / f"{NAME}.png"
    sweep.write(table)
    try:
        sweep.render(name).savefig(picture)
    except Exception as error:  # a sweep does not fail when its picture does
        LOG.warning("no plot of the sweep: %s: %s", type(error).__name__, error)
    steps, planned = len(sweep.points), sweep.settings.iters
    end = "the loss diverged" if sweep.has_diverged else why or "every learning rate was tried"
    LOG.info("")
    LOG.info("sweep    %d of %d steps, %s", steps, planned, end)
    found = sweep.suggestion()
    if found.lr is None:
        LOG.info("suggest  nothing: %s", found.why)
    else:
        LOG.info("suggest  LR=%.2g, %s", found.lr, found.why)
        LOG.info(
            "use      rerun with LR=%.2g and without LR_FINDER; if training is unstable, with a third of it", found.lr
        )
    LOG.info("files    %s, %s", table, picture)
