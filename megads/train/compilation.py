"""Has the layers of a run compiled, or run by liger, where its settings and its device ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from megads.cluster.hosts import this_host
from megads.comm.groups import Groups
from megads.comm.messages import first_text
from megads.config.kernel_form import form_of
from megads.config.schema import RunConfig
from megads.models.kernels.cache import CompileCache
from megads.monitor.log import LOG


def compile_run(run: RunConfig, engine: Any, run_dir: Path, groups: Groups, device: torch.device) -> None:
    """Compile the layers and the loss of ``engine`` at their first call, from the run's cache where it has them.

    Or have liger's kernels take their place. Collective: where one rank cannot compile, none does.
    """
    form = form_of(run, groups.grid.world_size, device.type)
    if form.reason and groups.rank == 0:
        LOG.info("layers run eagerly: %s", form.reason)
    if form.kind == "eager":
        return
    modules = getattr(engine, "chunks", None) or [engine.module]
    is_first = groups.data_rank == groups.tensor_rank == groups.seq_rank == 0
    if form.kind == "liger":
        _use_liger(modules, speaks=is_first)
        return
    from megads.models.kernels import probe  # these import the compiler
    from megads.models.kernels.compiled import compile_layers

    if not _can_compile(probe.why_not(device), groups):
        return
    cache = CompileCache(run_dir, groups.pipe_rank, writes=is_first)
    _fill(cache, groups, speaks=is_first)

    def say(line: str) -> None:
        if is_first:
            LOG.info("%s", line)
            if problem := cache.save():
                LOG.warning("%s", problem)

    def warn(line: str) -> None:
        LOG.warning("%s", line)

    compile_layers(modules, say, warn=warn)


def _can_compile(problem: str, groups: Groups) -> bool:
    """Return whether no rank has a ``problem``."""
    # The same on every rank: one that computes otherwise than its neighbours would have other collectives.
    first = first_text(f"rank {groups.rank} on {this_host()} cannot compile: {problem}" if problem else "")
    if first and groups.rank == 0:
        LOG.warning("layers run eagerly: %s", first)
    return not first


def _fill(cache: CompileCache, groups: Groups, *, speaks: bool) -> None:
    if cache.load() and groups.rank == 0:
        LOG.info("compiled code of an earlier start: %s", cache.path)
    if cache.problem and speaks:
        LOG.warning("%s", cache.problem)


def _use_liger(modules: list[Any], *, speaks: bool) -> None:
    from megads.models.kernels.liger import use_liger

    def say(line: str) -> None:
        if speaks:
            LOG.info("%s", line)

    use_liger(modules, say)
