"""Traces of runs, one after another in a forked process, which has no ranks of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def run_of(preset: str, world: int, env: dict[str, str]) -> Any:
    """Return a run of ``preset`` with the settings ``env``, derived for ``world`` ranks."""
    from megads.config.derive import derive
    from megads.config.sources.resolve import resolve

    per_host = min(8, world)
    resolved = resolve(preset, env=env, machine="generic")
    return derive(resolved, num_hosts=world // per_host, ranks_per_host=per_host, vocab_size=1000).run


class Tracer:
    """Traces in another process, which stays for the next one."""

    def __init__(self, pool: Any):
        self.pool = pool

    def __call__(self, preset: str, rank: int, world: int, env: dict[str, str], *, has_memory: bool = False) -> Any:
        """Return the trace of a rank, how it compares, and what the report says."""
        return self.pool.apply(_trace, (preset, rank, world, env, has_memory))


def _trace(preset: str, rank: int, world: int, env: dict[str, str], has_memory: bool) -> Any:
    from megads.trace.compare import compare
    from megads.trace.report import content, report
    from megads.trace.step import trace

    run = run_of(preset, world, env)
    found = trace(run, rank, world, has_memory=has_memory)
    compared = compare(run, found)
    return found, compared, report(run, found, compared), content(run, found, compared)


@contextmanager
def _pool() -> Iterator[Tracer]:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        yield Tracer(pool)


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    """A :class:`Tracer` of a test module."""
    with _pool() as made:
        yield made
