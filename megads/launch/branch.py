"""A run that branches off a checkpoint of another one: a run folder of its own, which the other cannot take from it.

The files of the checkpoint are linked, not copied: they take no space while both runs have them, and stay when the
other run removes its own.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from megads.checkpoint.format.folders import CheckpointRef
from megads.checkpoint.resume.compatibility import run_of, stages_before
from megads.checkpoint.resume.start_point import source_of
from megads.cluster.machine import machine_name
from megads.config.data_stages.read import GivenStage, read_stages
from megads.config.data_stages.table import DataStage, StageTable
from megads.config.data_stages.views import tokens_until
from megads.config.data_stages.write import past_stage, stages_text
from megads.config.run_files import BRANCH
from megads.config.run_folder import CONFIG
from megads.config.schedule.batches import planned_samples
from megads.config.schedule.rates import Schedule
from megads.config.schema import RunConfig
from megads.errors import LaunchError
from megads.launch.request import TrainRequest, resolve_request
from megads.monitor.plots.source import settings_of
from megads.monitor.run_state.branches import BranchPoint, read_branch
from megads.text.units import count

SETTINGS, STAGES = "branch-settings.yaml", "stages.yaml"
"""Of a branch's folder: the settings of the run it is of, and its stages of data, those behind it included."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", re.ASCII)
_GIVEN = ("env", "cli")
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def branch_folder(of: Path, name: str) -> Path:
    """Return the folder of the branch ``name``, next to that of its run.

    Raises:
        LaunchError: the name cannot be one.
    """
    if not _NAME.fullmatch(name):
        raise LaunchError(f"--name {name!r:.100}: expected up to 80 letters, digits, '.', '_' or '-'")
    return of.absolute().parent / name


def find_point(of: Path, at: int | None) -> tuple[CheckpointRef, BranchPoint]:
    """Return the checkpoint of the run ``of`` after iteration ``at`` (None: the newest), and what a branch notes of it.

    Raises:
        LaunchError: there is no run.
        CheckpointError: it has no such checkpoint, or it is damaged.
    """
    if not (of / CONFIG).is_file():
        raise LaunchError(f"{of}: no run here (no {CONFIG}); pass the folder of a run, `megads runs` lists them")
    elsewhere = settings_of(of).get("checkpoint.dir")
    found = source_of(Path(str(elsewhere)) if elsewhere else of / "checkpoints", at)
    manifest, before = found.manifest, run_of(found.manifest.settings)
    consumed = int(manifest.progress.get("consumed_samples", 0))
    tokens = tokens_until(before, consumed) if before else 0
    made = time.strftime("%Y-%m-%d %H:%M:%S")
    return found, BranchPoint(
        str(of.absolute()), manifest.iteration, consumed, tokens, str(found.path.absolute()), made
    )


def is_same_branch(folder: Path, of: Path, at: int | None) -> bool:
    """Return whether ``folder`` is a branch of the run ``of`` at iteration ``at`` (None: any) already.

    The same command then resumes it, whatever checkpoints are left of the run that it is of.

    Raises:
        LaunchError: it holds something else.
    """
    if not os.path.lexists(folder):
        return False
    there = read_branch(folder)
    if there is not None and there.of == str(of.absolute()) and at in (None, there.iteration):
        return True
    what = f"a branch of {there.of} at {there.iteration}" if there else "no branch of this run"
    raise LaunchError(f"{folder}: already exists, {what}; use another --name")


def make_branch(folder: Path, found: CheckpointRef, point: BranchPoint, request: TrainRequest, *, copy: bool) -> None:
    """Make the folder of a branch; it appears whole or not at all, and the run that it is of stays as it is.

    Raises:
        LaunchError: it cannot be written, or the checkpoint can only be copied.
        MegadsError: the stages of its data cannot be read, or do not continue those of the run.
    """
    part = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(part, ignore_errors=True)
        place = part / "checkpoints" / found.path.name
        place.mkdir(parents=True)
        _take_files(found.path, place, copy=copy)
        shutil.copyfile(Path(point.of) / CONFIG, part / SETTINGS)
        if text := _stages(found, point, request):
            (part / STAGES).write_text(text, encoding="utf-8")
        (part / BRANCH).write_text(json.dumps(asdict(point), indent=1) + "\n", encoding="utf-8")
        os.rename(part, folder)
    except OSError as error:
        raise LaunchError(f"branch {folder}: {error.filename}: {error.strerror}; use a disk that has room") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _take_files(source: Path, place: Path, *, copy: bool) -> None:
    """Link the files of a checkpoint into ``place``, or copy them."""
    for file in sorted(each for each in source.iterdir() if each.is_file()):
        if copy:
            shutil.copy2(file, place / file.name)
            continue
        try:
            os.link(file, place / file.name)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            total = sum(each.stat().st_size for each in source.iterdir())
            raise LaunchError(
                f"{source}: its files cannot be linked into {place.parent} ({error.strerror}); --copy copies "
                f"{count(total)} bytes"
            ) from None


def remove_unused(folder: Path) -> None:
    """Remove the folder of a branch in which nothing has been started, prepared or submitted."""
    with suppress(OSError):
        if set(os.listdir(folder)) <= {"checkpoints", "lock", "lease", SETTINGS, STAGES, BRANCH}:
            shutil.rmtree(folder)


def request_of_branch(folder: Path, request: TrainRequest) -> TrainRequest:
    """Return the request that trains the branch in ``folder``: settings of its run, and what the user gives now."""
    env = {**request.env, "RUN_DIR": str(folder), "CONFIG_FILE": str(folder / SETTINGS)}
    pairs = request.pairs
    if (folder / STAGES).is_file():
        env["DATA_STAGES"] = str(folder / STAGES)
        pairs = tuple(pair for pair in pairs if not pair.startswith("data.stages="))
    return replace(request, env=env, pairs=pairs)


def _stages(found: CheckpointRef, point: BranchPoint, request: TrainRequest) -> str:
    """Return the file of the branch's stages, those that were trained first; empty where the user gives none."""
    first = replace(request, env={**request.env, "CONFIG_FILE": str(Path(point.of) / CONFIG)})
    machine = machine_name(request.hostname, request.env, request.root)
    resolved = resolve_request(first, machine, needs_checkpoint=False)
    data, origins = resolved.run.data, resolved.origins
    if not data.stages or origins["data.stages"].layer not in _GIVEN:
        return ""
    given = read_stages(Path(data.stages))
    before = run_of(found.manifest.settings)
    if before is None:
        raise LaunchError(f"{found.path}: has no settings, so the stages before the branch are not known")
    past = _past(found, point, before, given)
    names = {each.name for each in past}
    for stage in given:
        if stage.name in names:
            raise LaunchError(f"{stage.where}: {point.of} has a stage of this name behind it; use another name")
    title = f"Stages of a branch of {point.of} at iteration {point.iteration}; past ones were trained before it."
    return stages_text([*past, *given], title, Path(data.stages).absolute().parent)


def _past(found: CheckpointRef, point: BranchPoint, before: RunConfig, given: Sequence[GivenStage]) -> list[GivenStage]:
    """Return what was trained before the branch, as stages."""
    table = stages_before(found.manifest.settings) or _one_stage(point, before)
    scheduled = int(found.manifest.progress.get("scheduled_samples", 0))
    has_rates = table.has_rates or any(each.rate for each in given)
    rate = Schedule.of(before).lr(scheduled) if has_rates else None
    end = point.consumed_samples
    begun = [each for each in table.stages if each.first < end]
    return [past_stage(each, (min(each.end, end) - each.first) // each.batch, rate) for each in begun]


def _one_stage(point: BranchPoint, before: RunConfig) -> StageTable:
    """Return the run so far as one stage.

    Raises:
        LaunchError: its steps were of several batches.
    """
    batch, steps = before.train.global_batch, point.iteration
    if steps * batch != point.consumed_samples:
        raise LaunchError(
            f"{point.of}: {steps} steps consumed {point.consumed_samples} samples, which are not {steps} x "
            f"GLOBAL_BATCH={batch}: its batch changed; branch without DATA_STAGES, or from a run with stages"
        )
    planned = planned_samples(before)
    stage = DataStage(point.name, 0, 0, steps, batch, before.model.seq_length, 0, planned=planned)
    return StageTable(point.of, (stage,))
