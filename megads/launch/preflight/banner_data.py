"""The lines of a banner that report data: corpora, and how often each is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from megads.config.schedule.batches import BatchSchedule, SkipRanges
from megads.config.schema import RunConfig
from megads.data.datasets import read_held_out, read_shards, uses_demo
from megads.data.sources.epochs import Share
from megads.data.sources.file_list import Shard, repeated
from megads.text.plural import plural
from megads.text.units import count

MOST_ROWS = 8
OFTEN = 4.0
"""Epochs; beyond about four, repeated text teaches clearly less than new text (arXiv 2305.16264)."""


def ramp_line(run: RunConfig) -> str:
    """Return how the batch grows, empty when it does not."""
    sizes = BatchSchedule.of(run)
    if not sizes.is_ramp:
        return ""
    return (
        f"from {sizes.start} samples by {sizes.increment} to {sizes.final} over {count(sizes.ramp_samples)} samples: "
        f"{sizes.ramp_iterations} iterations"
    )


def skips_line(run: RunConfig) -> str:
    """Return which iterations are skipped, empty when none is."""
    skips = SkipRanges.parse(run.train.skip_iterations)
    steps = skips.count_until(run.train.train_iters)
    return f"iterations {skips}: the data of {plural(steps, 'step')} is skipped" if steps else ""


def corpora_lines(shares: Sequence[Share]) -> Iterator[str]:
    """Yield a line for all corpora together, and when there are several one for each of the largest."""
    tokens, drawn = sum(share.tokens for share in shares), sum(share.drawn for share in shares)
    files = sum(share.files for share in shares)
    most = max(share.most_epochs for share in shares)
    ends = f", one file {most:.3g}" if most > 1.1 * max(share.epochs for share in shares) else ""
    yield (
        f"{_number(len(shares), 'corpus', 'corpora')} of {_number(files, 'file', 'files')}, {count(tokens)} tokens to "
        f"train on; {count(drawn)} are drawn, {drawn / tokens:.3g} epochs{ends}"
    )
    if len(shares) == 1:
        return
    shown = shares if len(shares) <= MOST_ROWS else shares[: MOST_ROWS - 1]
    width = max(len(share.corpus) for share in shown)
    for share in shown:
        often = "  <- read often" if share.epochs > OFTEN else ""
        yield (
            f"{share.corpus:{width}} {share.weight:6.1%} {_number(share.files, 'file', 'files'):>10} "
            f"{count(share.tokens):>6} tokens {share.epochs:8.3g} epochs{often}"
        )
    rest = shares[len(shown) :]
    if rest:
        worst = max(rest, key=lambda share: share.epochs)
        yield (
            f"{len(rest)} more: {sum(share.weight for share in rest):.1%}, up to {worst.epochs:.3g} epochs "
            f"({worst.corpus})"
        )


def list_notes(run: RunConfig) -> Iterator[str]:
    """Yield a line where files are listed more than once, and where held-out files are trained on.

    Raises:
        DataError: a list cannot be read.
    """
    if uses_demo(run):
        return
    train = _used(read_shards(run))
    if twice := repeated(train):
        yield (
            f"{_number(len(twice), 'training file is', 'training files are')} listed more than once, as "
            f"{twice[0][0].prefix}: each time with its own share of the samples"
        )
    for own in (run.data.held_out("valid"), run.data.held_out("test")):
        held_out = _used(read_held_out(own)) if own.text else []
        seen = repeated([*train, *held_out])[len(twice) :]
        both = [shard for shard, first in seen if any(first is each for each in train)]
        if both:
            many = _number(len(both), "of its files is", "of its files are")
            where = f"{own.variable}={own.text}: {many} trained on, too, as {both[0].prefix}"
            yield f"{where}; its loss says little there"


def _used(shards: Sequence[Shard]) -> list[Shard]:
    return [shard for shard in shards if shard.weight > 0]


def _number(value: int, one: str, many: str) -> str:
    return f"{value} {one if value == 1 else many}"
