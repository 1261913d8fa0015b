"""What rank 0 says before the first step and after the last."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import torch

from megads.config.run_folder import COMMAND
from megads.config.schema import RunConfig
from megads.config.sources.flags import flags
from megads.config.sources.resolve import LENGTHS, PLANNED
from megads.config.tree import env_name, extra, fields
from megads.data.samples.retro.queried import is_retro
from megads.errors import EXIT_DONE
from megads.monitor.interval import STALL_SHOWN
from megads.monitor.log import FILE, LOG
from megads.monitor.plots.sketch import loss_sketch, read_losses
from megads.monitor.run_state.outcome import Outcome, write_outcome
from megads.monitor.throughput import SPEED_STEPS, Speed, mfu_text
from megads.plan.flops import basis
from megads.plan.places.peaks import slow_products
from megads.text.plural import plural
from megads.text.units import count, size
from megads.text.units import seconds as measured
from megads.train.loop import Loop
from megads.train.predicted import report
from megads.train.setup import Training


def announce(training: Training, resumed: Path | None, seconds: float) -> None:
    """Say on which device the run is, how long its set-up took and where it starts."""
    vendor, device, run = training.vendor, training.device, training.run
    ranks = training.groups.grid.world_size
    peak = training.peak_tflops
    parts = ", ".join(f"{name} {measured(took)}" for name, took in training.timings.items())
    name = vendor.device_name(device)
    told = f", allocator {vendor.allocator()}" if vendor.allocator() else ""
    LOG.info("device   %s x %d, backend %s, torch %s%s", name, ranks, vendor.backend, torch.__version__, told)
    kind = vendor.product_dtype(run.train.dtype)
    LOG.info("mfu      %s", f"of {peak:.4g} TFLOP/s per rank in {kind}; {basis(run)}" if peak else UNKNOWN_PEAK)
    if note := slow_products(name, kind):
        LOG.info("note     %s", note)
    LOG.info("set up   in %s (%s)", measured(seconds), parts)
    # Without a checkpoint the banner has said with which weights it starts.
    if resumed is None:
        LOG.info("init     random weights, seed %d", run.train.seed_of_weights, extra=FILE)
    elif not training.progress.iteration:
        LOG.info("start    from the weights of %s", resumed)
    else:
        LOG.info("resume   from %s, iteration %d", resumed, training.progress.iteration)


UNKNOWN_PEAK = "unknown; set MEGADS_PEAK_TFLOPS, the dense TFLOP/s of one rank's device, to see it"


def conclude(loop: Loop, outcome: Outcome) -> None:
    """Write how the run ended, and say so."""
    # The outcome first: nothing in the summary can turn a run that ended well into a failure.
    outcome = loop.reporter.recorded(outcome) if loop.reporter is not None else outcome
    write_outcome(loop.training.run_dir, outcome)
    summarise(loop, outcome)
    if loop.watch is not None:
        loop.watch.claim.end()


def summarise(loop: Loop, outcome: Outcome) -> None:
    """Say how the run went and what to do next; draw the loss."""
    t, done = loop.training, loop.training.progress
    draw(t)
    LOG.info("")
    evaluates = t.run.train.evaluate_only and outcome.exit_code == EXIT_DONE
    LOG.info(
        "%s",
        f"done     evaluated at iteration {outcome.iteration}"
        if evaluates
        else ending(outcome, t.run.train.train_iters),
    )
    if done.first_loss is not None and done.last_loss is not None:
        mean = loop.reporter.last_loss() if loop.reporter is not None else None
        last = done.last_loss if mean is None else mean
        LOG.info("loss     training %.4f -> %.4f%s", done.first_loss, last, _validation(t))
    if unusable := done.skipped_iterations - done.rejected_iterations:
        LOG.info("skipped  %s (gradient NaN or Inf)", plural(unusable, "step"))
    if done.rejected_iterations:
        LOG.info("rejected %s (loss spike)", plural(done.rejected_iterations, "step"))
    if loop.speeds:
        median = loop.speed_of(statistics.median(loop.speeds[-SPEED_STEPS:]), 1.0)
        LOG.info("speed    %s", speed_line(median, last_steps(len(loop.speeds))))
    if loop.reporter is not None:
        report(loop.reporter.comparison.line())
    if spent := loop.timing.shares.line():
        LOG.info("time     %s", spent)
    if loop.waited_s > STALL_SHOWN * loop.stepped_s:
        LOG.info(
            "data     stall %.0f%% of the step time on rank 0; raise NUM_WORKERS, or check the file system",
            100 * loop.waited_s / loop.stepped_s,
        )
    predicted = loop.reporter.comparison.prediction.memory_bytes if loop.reporter is not None else 0
    told = f", predicted {size(predicted)}" if predicted else ""
    peak = outcome.measured.get("memory_bytes") or t.vendor.memory_bytes(t.device)
    LOG.info("memory   peak %s on rank 0%s", size(peak), told)
    if loop.energy is not None and loop.reporter is not None:
        LOG.info("energy   %s", loop.energy.line(loop.reporter.used))
    there = [name for name in ("metrics.jsonl", "loss.png", "config.yaml") if (t.run_dir / name).is_file()]
    LOG.info("folder   %s (%s)", t.run_dir, ", ".join(there))
    command = t.run_dir / COMMAND
    stopped = outcome.exit_code != EXIT_DONE
    # A task has its epochs, and a Retro project as many samples as it was asked for.
    is_bounded = t.run.finetune.task or (is_retro(t.run) and not t.run.data.retro_cyclic_train_iters)
    is_bounded = is_bounded or bool(t.run.data.stage_table)  # another stage makes it longer
    if command.is_file() and not t.run.train.evaluate_only and (stopped or not is_bounded):
        line = command.read_text(encoding="utf8").strip()
        planned = t.run.train.planned_iters
        LOG.info("%s", f"resume   {line}" if stopped else f"longer   {longer(line, next_length(t.run), planned)}")


def speed_line(speed: Speed, steps: str = "the last steps") -> str:
    """Return tokens/s, TFLOP/s and, where the peak is known, MFU and HFU of a run's median step, of ``steps``."""
    text = f"{count(speed.tokens_per_s)} tokens/s, {speed.tflops_per_device:.3g} TFLOP/s per device (median of {steps})"
    if speed.mfu is None or speed.hfu is None:
        return text
    mfu = mfu_text(speed.mfu, speed.mfu_full, speed.mfu_causal)
    return f"{text}, {mfu}" + (f", hfu {speed.hfu:.1%}" if speed.hfu > speed.mfu else "")


def last_steps(steps: int) -> str:
    """Return the steps whose median speed is reported."""
    return f"the last {SPEED_STEPS} steps" if steps > SPEED_STEPS else plural(steps, "step")


def draw(training: Training) -> None:
    """Draw the loss as ``loss.png`` and in the log. A run does not fail when its picture does."""
    try:
        losses = read_losses(training.run_dir / "metrics.jsonl")
        if "lm_loss" not in losses:
            return
        from megads.monitor.plots.picture import save_loss_plot  # matplotlib, at the end of a run only

        save_loss_plot(losses, training.run_dir / "loss.png", training.run.name)
        LOG.info("\n%s", loss_sketch(losses))
    except Exception as error:
        LOG.warning("no plot of the loss: %s: %s", type(error).__name__, error)


def ending(outcome: Outcome, train_iters: int) -> str:
    """Return the summary's first line."""
    word = "done" if outcome.exit_code == EXIT_DONE else "stopped"
    why = "" if outcome.exit_code == EXIT_DONE else f"; {outcome.message}"
    return f"{word:8} {outcome.iteration} of {plural(train_iters, 'iteration')}{why}"


def next_length(run: RunConfig) -> int:
    """Return the steps that a run may go on to: its planned ones, else twice as many as it has."""
    train = run.train
    return train.planned_iters if train.planned_iters > train.train_iters else 2 * train.train_iters


def longer(command: str, train_iters: int, planned: int = 0) -> str:
    """Return the command line that trains on to ``train_iters``, however its length was given before.

    ``planned``: iterations that were planned; where they are fewer, the plan is not part of the command.
    """
    lengths = LENGTHS if planned >= train_iters else (*LENGTHS, *PLANNED)
    names = {name for each in lengths for name in (env_name(each), *extra(fields()[each], "aliases"))}
    options = {flag for flag, each in flags().items() if set(each.gives) & set(lengths)}
    # Words as the shell sees them, with their quotes.
    words = re.findall(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""", command)
    words_left: list[str] = []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        is_set = name == "--set" and (value or words[0]).partition("=")[0] in lengths
        if is_set or name in options:
            words = words if equals else words[1:]
        elif not (equals and name in names):
            words_left.append(word)
    return " ".join([f"TRAIN_ITERS={train_iters}", *words_left])


def _validation(training: Training) -> str:
    first, last = training.progress.first_valid_loss, training.progress.last_valid_loss
    if first is None or last is None:
        return ""
    return f", validation {last:.4f}" if first == last else f", validation {first:.4f} -> {last:.4f}"
