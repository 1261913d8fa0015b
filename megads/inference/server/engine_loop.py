"""The engine in a thread of its own: requests come from the web server, updates go back to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from megads.comm.messages import broadcast_value
from megads.comm.presence import LostRanks, Presence
from megads.errors import ConfigError, MegadsError
from megads.inference.beam import Beam, beam_search
from megads.inference.engine import Engine
from megads.inference.request import Request, TokenScore
from megads.inference.sampling import Sampling
from megads.inference.session import Session

HEARTBEAT_S = 5.0
"""At most between two commands to the other ranks of an idle server: they wait in a collective with a time limit."""

FAILED = "the engine has failed; see the server's log"


class Overloaded(MegadsError):
    """More requests wait than the server accepts."""


@dataclass(frozen=True)
class Update:
    """What is new of a request.

    Attributes:
        text: settled since the update before.
        tokens: generated since then.
        scores: of these tokens, if asked for.
        prompt_scores: of the prompt, in the first update, if asked for.
        finish_reason: see :class:`megads.inference.request.Request`; empty: more follows.
    """

    text: str
    tokens: tuple[int, ...]
    scores: tuple[TokenScore, ...] = ()
    prompt_scores: tuple[TokenScore, ...] = ()
    finish_reason: str = ""


@dataclass
class _Client:
    """A request of the web server, between its thread and the engine's."""

    prompt: Sequence[int]
    sampling: Sampling
    loop: asyncio.AbstractEventLoop
    updates: asyncio.Queue[Update | BaseException] = field(default_factory=asyncio.Queue)
    request: Request | None = None
    shown: int = 0  # characters
    sent: int = 0  # tokens

    def send(self, update: Update | BaseException) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.updates.put_nowait, update)


@dataclass(frozen=True)
class BeamJob:
    """What :func:`megads.inference.beam.beam_search` is called with."""

    prompt: tuple[int, ...]
    width: int
    max_tokens: int
    eos: tuple[int, ...]
    length_penalty: float

    def run(self, session: Session) -> list[Beam]:
        """Return the beams. All ranks of the model call it while no request runs."""
        return beam_search(
            session.runner,
            self.prompt,
            width=self.width,
            max_tokens=self.max_tokens,
            eos=self.eos,
            length_penalty=self.length_penalty,
        )


@dataclass(frozen=True)
class _BeamClient:
    number: int  # counts beam searches and other requests
    job: BeamJob
    found: concurrent.futures.Future[list[Beam]]


class EngineLoop:
    """Runs the engine on rank 0, and has the other ranks of the model do the same steps.

    Args:
        session: the model; one replica.
        max_waiting: requests that wait for a slot; more are refused.
        presence: tells which rank is gone; None: there is one rank, or nobody asks.
    """

    def __init__(self, session: Session, max_waiting: int, presence: Presence | None = None):
        self.session, self.max_waiting, self.presence = session, max_waiting, presence
        self.heartbeat_s = min(HEARTBEAT_S, session.timeout_s / 3)
        self.engine = Engine(session.runner, tokenizer=session.tokenizer, eos=session.eos)
        self.failure: BaseException | None = None
        self.generated = 0  # tokens
        self._changed = threading.Condition()
        self._clients: dict[int, _Client] = {}
        self._new: list[tuple[int, _Client]] = []
        self._beams: list[_BeamClient] = []
        self._aborted: list[int] = []
        self._count = 0
        self._is_ending = False
        self._on_failure: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="megads-engine", daemon=True)

    def start(self, on_failure: Callable[[], None] = lambda: None) -> None:
        """Start the thread; it calls ``on_failure`` when it has set ``failure``."""
        self._on_failure = on_failure
        self._thread.start()

    def stop(self) -> None:
        """Finish the requests that are there, and end the thread and the other ranks."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join()

    @property
    def num_requests(self) -> int:
        """Requests that run or wait."""
        return len(self._clients) + len(self._beams)

    def check(self, prompt: Sequence[int], sampling: Sampling) -> None:
        """Refuse a prompt that cannot be continued.

        Raises:
            ConfigError: see ``megads.inference.engine.check_prompt``.
        """
        self.engine.check(prompt, sampling)

    def check_room(self, more: int) -> None:
        """Refuse ``more`` requests that would wait too long.

        Raises:
            ConfigError: they are more than the queue has room for.
            Overloaded: the queue is full.
        """
        most = self.session.runner.num_slots + self.max_waiting
        if more > most:
            raise ConfigError(f"{more} texts in one request; this server takes at most {most}")
        if self.num_requests + more > most:
            raise Overloaded(f"{self.num_requests} requests run or wait, of at most {most}; try later")

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> AsyncGenerator[Update, None]:
        """Yield updates until the request is finished; leaving early aborts it.

        Raises:
            MegadsError: the engine has failed.
        """
        client = _Client(prompt, sampling, asyncio.get_running_loop())
        with self._changed:
            if self.failure or self._is_ending:
                raise MegadsError("the server is stopping")
            number = self._count
            self._count += 1
            self._clients[number] = client
            self._new.append((number, client))
            self._changed.notify()
        is_finished = False
        try:
            while not is_finished:
                update = await client.updates.get()
                if isinstance(update, BaseException):
                    is_finished = True
                    raise MegadsError(_reason(update)) from update
                is_finished = bool(update.finish_reason)
                yield update
        finally:
            if not is_finished:
                with self._changed:
                    self._aborted.append(number)
                    self._changed.notify()

    async def complete(self, prompt: Sequence[int], sampling: Sampling) -> Update:
        """Return all of a request in one update."""
        text, reason = "", ""
        tokens: list[int] = []
        scores: list[TokenScore] = []
        prompt_scores: tuple[TokenScore, ...] = ()
        async with aclosing(self.generate(prompt, sampling)) as updates:
            async for each in updates:
                text += each.text
                tokens += each.tokens
                scores += each.scores
                prompt_scores = prompt_scores or each.prompt_scores
                reason = each.finish_reason
        return Update(text, tuple(tokens), tuple(scores), prompt_scores, reason)

    async def beam_search(self, job: BeamJob) -> list[Beam]:
        """Return the best continuations. It runs alone, when the requests before it have ended; later ones wait.

        Raises:
            ConfigError: see :func:`megads.inference.beam.beam_search`.
        """
        with self._changed:
            if self.failure or self._is_ending:
                raise MegadsError("the server is stopping")
            client = _BeamClient(self._count, job, concurrent.futures.Future())
            self._count += 1
            self._beams.append(client)
            self._changed.notify()
        return await asyncio.wrap_future(client.found)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as found:
            error = _lost_rank(found, self.presence) or found
            with self._changed:  # nobody queues a request that nobody answers
                self.failure = error
                for client in self._clients.values():
                    client.send(error)
                for each in self._beams:
                    if each.found.running() or each.found.set_running_or_notify_cancel():
                        each.found.set_exception(MegadsError(_reason(error)))
            self._on_failure()

    def _step(self) -> bool:
        """Take commands, do one step of the engine and send what is new; return False at the end."""
        new, aborted, beam, is_last = self._commands()
        if self.session.groups.world is not None:
            requests = [[number, list(each.prompt), each.sampling] for number, each in new]
            broadcast_value([requests, aborted, beam and beam.job, is_last])
        if beam is not None:
            self._search(beam)
        for _, client in new:
            client.request = self.engine.add(client.prompt, client.sampling)
        for number in aborted:
            left = self._clients.pop(number, None)
            if left and left.request:
                self.engine.abort(left.request)
        if not self.engine.is_idle:
            self.engine.step()
        for number, client in list(self._clients.items()):
            if client.request and self._report(client, client.request):
                del self._clients[number]
        return not is_last

    def _commands(self) -> tuple[list[tuple[int, _Client]], list[int], _BeamClient | None, bool]:
        """Return new requests, those to abort, a beam search, and whether this is the end; wait if there is nothing."""
        with self._changed:
            is_waiting = not (self._new or self._aborted or self._beams or self._is_ending)
            if is_waiting and self.engine.is_idle:
                self._changed.wait(self.heartbeat_s)
            self._beams = [each for each in self._beams if not each.found.cancelled()]
            aborted, self._aborted = self._aborted, []
            self._new = [each for each in self._new if each[0] not in aborted]
            # In the order of their coming: a search waits for what came before it, and what comes after it waits.
            turn = self._beams[0].number if self._beams else self._count
            new = [each for each in self._new if each[0] < turn]
            self._new = self._new[len(new) :]
            beam = self._beams.pop(0) if self._beams and self.engine.is_idle and not new else None
            if beam and not beam.found.set_running_or_notify_cancel():  # the client has left just now
                beam = None
            is_last = self._is_ending and not (new or beam or self._beams) and self.engine.is_idle
        return new, aborted, beam, is_last

    def _search(self, beam: _BeamClient) -> None:
        try:
            beam.found.set_result(beam.job.run(self.session))
        except MegadsError as error:  # of the request, the same on every rank
            beam.found.set_exception(error)
        except BaseException:
            self._beams.insert(0, beam)  # answered when the reason is known
            raise

    def _report(self, client: _Client, request: Request) -> bool:
        """Send what is new of a request; return whether it is finished."""
        text = request.settled_text[client.shown :]
        tokens = request.output[client.sent :]
        if not (text or tokens or request.finish_reason):
            return False
        scores = tuple(request.scores[client.sent :])
        prompt_scores = tuple(request.prompt_scores) if client.sent == 0 else ()
        client.shown += len(text)
        client.sent += len(tokens)
        self.generated += len(tokens)
        client.send(Update(text, tuple(tokens), scores, prompt_scores, request.finish_reason))
        return bool(request.finish_reason)


def _lost_rank(error: BaseException, presence: Presence | None) -> BaseException | None:
    """Return an error that names the ranks that are gone; None where ``error`` has another cause."""
    if presence is None or not isinstance(error, RuntimeError):
        return None
    return presence.error()


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, LostRanks) else FAILED


def follow(session: Session, presence: Presence | None = None) -> None:
    """Do what rank 0 does, until it ends; on the other ranks of the model.

    Raises:
        LostRanks: other ranks are gone.
    """
    try:
        _follow(session)
    except RuntimeError as error:
        if lost := _lost_rank(error, presence):
            raise lost from None
        raise


def _follow(session: Session) -> None:
    engine = Engine(session.runner, tokenizer=session.tokenizer, eos=session.eos)
    requests: dict[int, Request] = {}
    is_last = False
    while not is_last:
        new, aborted, beam, is_last = broadcast_value(None)
        if beam is not None:
            with suppress(MegadsError):  # rank 0 reports it
                beam.run(session)
        for number, prompt, sampling in new:
            requests[number] = engine.add(prompt, sampling)
        for number in aborted:
            if number in requests:
                engine.abort(requests[number])
        if not engine.is_idle:
            engine.step()
        requests = {number: each for number, each in requests.items() if not each.finish_reason}
