"""Loss on held-out data, of all of it and of each corpus."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from megads.engine.base import Engine
from megads.monitor.log import LOG
from megads.text.units import duration, four_digits

FIRST_S, EVERY_S = 10.0, 30.0  # until the first line of a long validation, and between two
MOST_SHOWN = 6  # corpora of a log line


@dataclass(frozen=True)
class HeldOut:
    """What :func:`evaluate` found, in nats per token; the same on every rank.

    ``loss`` is the mean over global batches of the mean over their counted tokens.
    ``corpora`` has for each corpus the mean over all of its counted tokens, in the order of
    the data list; a corpus without one is skipped, and so are all of them where there is
    but one corpus. ``terms`` are further terms of the training loss by name, each likewise.
    """

    loss: float
    corpora: Mapping[str, float] = field(default_factory=dict)
    terms: Mapping[str, float] = field(default_factory=dict)

    def row(self, name: str) -> dict[str, float]:
        """Return the entries of a metrics row: ``name`` and ``name/<corpus>``."""
        terms = {f"{name.removesuffix('loss')}{term}": loss for term, loss in self.terms.items()}
        return {name: self.loss, **terms, **{f"{name}/{corpus}": loss for corpus, loss in self.corpora.items()}}

    @property
    def losses(self) -> dict[str, float]:
        """The mean of every term, by the name that it has in training."""
        return {"lm_loss": self.loss, **self.terms}

    def line(self) -> str:
        """Return ``loss 2.3456, perplexity 10.4 (books 2.1234, code 1.4321)``, of many corpora the worst."""
        text = f"loss {self.loss:.4f}, perplexity {four_digits(perplexity(self.loss))}"
        text += "".join(f", {term.replace('_', ' ')} {loss:.4f}" for term, loss in self.terms.items())
        shown = list(self.corpora.items())
        if len(shown) > MOST_SHOWN:
            shown = sorted(shown, key=lambda each: -each[1])[: MOST_SHOWN - 1]
        words = [f"{corpus} {loss:.4f}" for corpus, loss in shown]
        if len(shown) < len(self.corpora):
            words.append(f"{len(self.corpora) - len(shown)} lower")
        return f"{text} ({', '.join(words)})" if words else text


def perplexity(loss: float) -> float:
    """Return ``exp(loss)``; infinity where that is too large for a float, nan for nan."""
    return math.exp(loss) if not loss > 700 else math.inf


class Pace:
    """Says how far a long validation is, or what else ``what`` names."""

    def __init__(self, total: int, what: str = "validation"):
        self.total, self.what, self.began = total, what, time.monotonic()
        self.next_s = FIRST_S

    def after(self, done: int) -> None:
        """Say so if it is time, ``done`` global batches or windows being done."""
        passed = time.monotonic() - self.began
        if not done or passed < self.next_s:
            return
        self.next_s = passed + EVERY_S
        of = f" of {self.total}, ETA {duration(passed / done * max(0, self.total - done))}" if self.total else ""
        LOG.info("%s: %d%s", self.what, done, of)


def evaluate(
    engine: Engine,
    steps: Iterable[Sequence[Tensor]],
    give_up: Callable[[], object] = lambda: False,
    *,
    corpora: Sequence[str] = (),
    corpus_of: Callable[[int], str] = lambda sample: "",
    total: int = 0,
) -> HeldOut | None:
    """Return the loss over ``steps``, the same on every rank; None when it was given up.

    Dropout is off and no generator moves, so evaluating does not change the training that follows.

    Args:
        engine: has the weights.
        steps: for each global batch this rank's micro-batches, ``[micro_batch, seq_length + 1]``
            int64; as many on every rank.
        give_up: asked before each global batch but the first; the same on every rank.
        corpora: names, of two or more; fewer: their losses are not looked at.
        total: of ``steps``; 0: not known. Rank 0's log says now and then how far a long validation is.
        corpus_of: returns the corpus of a sample, counted from the first of ``steps`` over all ranks.
    """
    losses: list[list[float]] = []  # of each global batch those of all terms
    sums = {corpus: [0.0, 0.0] for corpus in corpora}
    first = 0
    pace = Pace(total)
    for batches in steps:
        if losses and give_up():
            return None
        pace.after(len(losses))
        found = engine.eval_losses(batches)
        sums_and_counts = found.sum(dim=0).view(-1, 2)
        losses.append((sums_and_counts[:, 0] / sums_and_counts[:, 1].clamp(min=1)).tolist())
        if len(corpora) > 1:
            for sample, (loss, tokens) in enumerate(found[:, :2].tolist(), start=first):
                entry = sums[corpus_of(sample)]
                entry[0] += loss
                entry[1] += tokens
        first += len(found)
    means = {corpus: loss / tokens for corpus, (loss, tokens) in sums.items() if tokens}
    loss, *more = (math.fsum(each) / len(losses) for each in zip(*losses, strict=True))
    names = engine.loss_names[1:] if more else ()
    return HeldOut(loss, means, dict(zip(names, more, strict=True)))
