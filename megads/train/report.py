"""What rank 0 says before the first step and after the last."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from megads.config.files import COMMAND
from megads.config.flags import flags
from megads.config.flops import basis
from megads.config.tree import env_name, extra, fields
from megads.monitor.log import LOG
from megads.monitor.outcome import EXIT_DONE, Outcome
from megads.monitor.plots.loss import read_losses, save_loss_plot
from megads.monitor.plots.sketch import loss_sketch
from megads.monitor.text import WAITING, count, duration, size
from megads.monitor.throughput import Speed
from megads.train.loop import Loop
from megads.train.setup import Training


def announce(training: Training, resumed: Path | None, seconds: float) -> None:
    """Say on which device the run is, how long its set-up took and where it starts."""
    vendor, device, run = training.vendor, training.device, training.run
    ranks = training.groups.grid.world_size
    peak = training.peak_tflops
    parts = ", ".join(f"{name} {took:.1f}s" for name, took in training.timings.items())
    name = vendor.device_name(device)
    LOG.info("device   %s x %d, backend %s, torch %s", name, ranks, vendor.backend, torch.__version__)
    kind = vendor.product_dtype(run.train.dtype)
    LOG.info("mfu      %s", f"of {peak:.4g} TFLOP/s a rank in {kind}; {basis(run)}" if peak else UNKNOWN_PEAK)
    LOG.info("set up   in %s (%s)", duration(seconds), parts)
    if resumed is None:
        LOG.info("start    from new weights, seed %d", run.train.seed_of_weights)
    elif not training.progress.iteration:
        LOG.info("start    from the weights of %s", resumed)
    else:
        LOG.info("resume   from %s, iteration %d", resumed, training.progress.iteration)


UNKNOWN_PEAK = "unknown; set MEGADS_PEAK_TFLOPS, the dense TFLOP/s of one rank's device, to see it"


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
        mean = loop.teller.last_loss() if loop.teller is not None else None
        last = done.last_loss if mean is None else mean
        LOG.info("loss     training %.4f -> %.4f%s", done.first_loss, last, _validation(t))
    if unusable := done.skipped_iterations - done.rejected_iterations:
        LOG.info("skipped  %d steps, for a gradient that was not finite", unusable)
    if done.rejected_iterations:
        LOG.info("left out %d steps, for a loss that was not accepted", done.rejected_iterations)
    if loop.speeds:
        LOG.info("speed    %s", speed_line(loop.median_speed()))
    if spent := loop.timing.shares.line():
        LOG.info("time     %s", spent)
    if loop.waited_s > WAITING * loop.stepped_s:
        LOG.info(
            "waited   %.0f%% of the steps' time for data on rank 0; raise NUM_WORKERS, or look at the file system",
            100 * loop.waited_s / loop.stepped_s,
        )
    LOG.info("memory   %s at most on rank 0", size(t.vendor.memory_bytes(t.device)))
    if loop.energy is not None and loop.teller is not None:
        LOG.info("energy   %s", loop.energy.line(loop.teller.used))
    LOG.info("folder   %s (metrics.jsonl, loss.png, config.yaml)", t.run_dir)
    command = t.run_dir / COMMAND
    if command.is_file() and not t.run.train.evaluate_only:
        line = command.read_text(encoding="utf8").strip()
        stopped = outcome.exit_code != EXIT_DONE
        LOG.info("%s", f"resume   {line}" if stopped else f"longer   {longer(line, 2 * t.run.train.train_iters)}")


def speed_line(speed: Speed) -> str:
    """Return tokens/s, TFLOP/s and, where the peak is known, MFU and HFU of a run's median step."""
    text = f"{count(speed.tokens_per_s)} tokens/s, {speed.tflops_per_device:.3g} TFLOP/s a device (median step)"
    if speed.mfu is None or speed.hfu is None:
        return text
    return f"{text}, mfu {speed.mfu:.1%}" + (f", hfu {speed.hfu:.1%}" if speed.hfu > speed.mfu else "")


def draw(training: Training) -> None:
    """Draw the loss as ``loss.png`` and in the log. A run does not fail for want of a picture."""
    try:
        losses = read_losses(training.run_dir / "metrics.jsonl")
        if "lm_loss" not in losses:
            return
        save_loss_plot(losses, training.run_dir / "loss.png", training.run.name)
        LOG.info("\n%s", loss_sketch(losses))
    except Exception as error:
        LOG.warning("no picture of the loss: %s: %s", type(error).__name__, error)


def ending(outcome: Outcome, train_iters: int) -> str:
    """Return the summary's first line."""
    word = "done" if outcome.exit_code == EXIT_DONE else "stopped"
    why = "" if outcome.exit_code == EXIT_DONE else f"; {outcome.message}"
    return f"{word:8} {outcome.iteration} of {train_iters} iterations{why}"


LENGTHS = ("train.train_iters", "train.train_samples", "train.train_tokens")


def longer(command: str, train_iters: int) -> str:
    """Return the command line that trains on to ``train_iters``, however its length was given before."""
    names = {name for each in LENGTHS for name in (env_name(each), *extra(fields()[each], "aliases"))}
    options = {flag for flag, each in flags().items() if set(each.gives) & set(LENGTHS)}
    # Words as the shell sees them, with their quotes.
    words = re.findall(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""", command)
    kept: list[str] = []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        is_set = name == "--set" and (value or words[0]).partition("=")[0] in LENGTHS
        if is_set or name in options:
            words = words if equals else words[1:]
        elif not (equals and name in names):
            kept.append(word)
    return " ".join([f"TRAIN_ITERS={train_iters}", *kept])


def _validation(training: Training) -> str:
    first, last = training.progress.first_valid_loss, training.progress.last_valid_loss
    return f", validation {first:.4f} -> {last:.4f}" if first is not None and last is not None else ""
