"""What rank 0, which runs the tasks, has all ranks of a model do."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from megads.comm.messages import broadcast_value, gather_values
from megads.errors import MegadsError
from megads.evaluate.score import score
from megads.evaluate.windows import Window
from megads.inference.engine import Engine
from megads.inference.request import Request
from megads.inference.sampling import Sampling
from megads.inference.session import Session

HEARTBEAT_S = 5.0
"""Between two messages of an idle rank 0: the others wait in a collective, which has a time limit."""


class Job(Protocol):
    """Work of all ranks."""

    def run(self, session: Session) -> Any:
        """Return the result, on rank 0 at least. All ranks call it."""


@dataclass(frozen=True)
class Scoring:
    """Log-probabilities of the last ``scored`` tokens of each row, and whether each token was the most likely one.

    Attributes:
        rows: at most the context + 1 tokens each.
        scored: of each row.
        batch: rows at a time, on a replica.
    """

    rows: list[list[int]]
    scored: list[int]
    batch: int

    def run(self, session: Session) -> list[tuple[float, bool]]:
        """Return a sum and a flag per row."""
        windows = [Window(tokens, scored) for tokens, scored in zip(self.rows, self.scored, strict=True)]
        return score(session.runner, windows, self.batch)


@dataclass(frozen=True)
class Choosing:
    """Log-probabilities of several tokens behind one text, and whether each is the most likely one.

    Attributes:
        rows: at most the context tokens each.
        choices: tokens behind each row.
        batch: rows at a time, on a replica.
    """

    rows: list[list[int]]
    choices: list[list[int]]
    batch: int

    @torch.inference_mode()
    def run(self, session: Session) -> list[tuple[float, bool]]:
        """Return a log-probability and a flag per choice, row by row."""
        runner, groups = session.runner, session.groups
        firsts = [0]
        for choices in self.choices:
            firsts.append(firsts[-1] + len(choices))
        found = torch.zeros(firsts[-1], 2, dtype=torch.float64)
        mine = range(groups.data_rank, len(self.rows), groups.data_size)
        for first in range(0, len(mine), self.batch):
            part = mine[first : first + self.batch]
            hidden = runner.run([self.rows[place] for place in part])
            if runner.is_last_stage:
                lasts = torch.tensor([len(self.rows[place]) - 1 for place in part], device=hidden.device)
                logits = runner.logits(hidden[torch.arange(len(part), device=hidden.device), lasts])
                scores, best = logits.log_softmax(dim=-1), logits.argmax(dim=-1)
                for row, place in enumerate(part):
                    tokens = torch.tensor(self.choices[place], device=hidden.device)
                    values = torch.stack([scores[row, tokens].double(), (tokens == best[row]).double()], dim=1)
                    found[firsts[place] : firsts[place + 1]] = values.cpu()
        found = runner.share(found)
        if groups.data is not None:
            found = found.to(runner.device)
            dist.all_reduce(found, group=groups.data)
        return [(logprob, bool(is_greedy)) for logprob, is_greedy in found.tolist()]


@dataclass(frozen=True)
class Generation:
    """Outputs behind prompts.

    Attributes:
        prompts: tokens.
        samplings: of each prompt, with a seed unless greedy.
    """

    prompts: list[list[int]]
    samplings: list[Sampling]

    def run(self, session: Session) -> list[list[int]]:
        """Return the tokens of every output, without those that ended it, on rank 0; elsewhere some of them."""
        groups = session.groups
        engine = Engine(session.runner, tokenizer=session.tokenizer, eos=session.eos)
        requests: dict[int, Request] = {}
        for place, (prompt, sampling) in enumerate(zip(self.prompts, self.samplings, strict=True)):
            if place % groups.data_size == groups.data_rank:
                requests[place] = engine.add(prompt, sampling)
        for _ in engine.run():
            pass
        outputs = {place: _output(each, session.eos) for place, each in requests.items()}
        if groups.data is not None and not (groups.pipe_rank or groups.tensor_rank):
            shares = gather_values([[place, tokens] for place, tokens in outputs.items()], 0, groups.data)
            outputs = {place: tokens for share in shares for place, tokens in share}
        return [outputs[place] for place in sorted(outputs)]


def scoring_jobs(
    rows: Sequence[tuple[Sequence[int], int]], batch: int, at_once: int
) -> Iterator[tuple[Scoring | Choosing, list[int]]]:
    """Yield jobs that score the last tokens of all rows, and the place among the rows of each of its results.

    Several choices of one token behind the same text are read off one distribution.

    Args:
        rows: tokens, and how many of them are scored.
        batch: rows at a time, on a replica.
        at_once: rows of a job.
    """
    single: dict[tuple[int, ...], list[int]] = {}
    for place, (tokens, scored) in enumerate(rows):
        if scored == 1:
            single.setdefault(tuple(tokens[:-1]), []).append(place)
    texts = sorted(single, key=len, reverse=True)
    for first in range(0, len(texts), at_once):
        part = texts[first : first + at_once]
        choices = [[rows[place][0][-1] for place in single[text]] for text in part]
        yield Choosing([list(text) for text in part], choices, batch), [each for text in part for each in single[text]]
    longer = sorted((each for each in range(len(rows)) if rows[each][1] > 1), key=lambda each: -len(rows[each][0]))
    for first in range(0, len(longer), at_once):
        places = longer[first : first + at_once]
        yield Scoring([list(rows[each][0]) for each in places], [rows[each][1] for each in places], batch), places


def _output(request: Request, eos: Sequence[int]) -> list[int]:
    ends = {*eos, *request.sampling.stop_token_ids}
    return request.output[:-1] if request.output and request.output[-1] in ends else request.output


class Ranks:
    """The ranks of a model, on rank 0. The others call :func:`follow`.

    Args:
        session: the model.
    """

    def __init__(self, session: Session):
        self.session = session
        self._turn = threading.Lock()
        self._ended = threading.Event()
        self._is_alone = session.groups.world is None
        if not self._is_alone:
            threading.Thread(target=self._beat, name="megads-heartbeat", daemon=True).start()

    def run(self, job: Job) -> Any:
        """Return the result of ``job``, which all ranks do."""
        with self._turn:
            if not self._is_alone:
                broadcast_value([True, job])
            try:
                return job.run(self.session)
            except BaseException:
                self._ended.set()  # the others are somewhere in the job: nothing that is sent now would fit
                raise

    def close(self, error: MegadsError | None = None) -> None:
        """Have the other ranks return from :func:`follow`, or raise ``error`` there."""
        with self._turn:
            if not (self._is_alone or self._ended.is_set()):
                self._ended.set()
                broadcast_value([False, error])

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with self._turn:
                if not self._ended.is_set():
                    broadcast_value([True, None])


def follow(session: Session) -> None:
    """Do what rank 0 does, until it closes its :class:`Ranks`.

    Raises:
        MegadsError: with which rank 0 ends.
    """
    goes_on, found = broadcast_value(None)
    while goes_on:
        if found is not None:
            found.run(session)
        goes_on, found = broadcast_value(None)
    if found is not None:
        raise found
