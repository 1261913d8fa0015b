"""Which checkpoint a run starts from, and what it takes of it; without torch.

A run resumes from its own checkpoints. ``LOAD`` says how it begins, while it has none, and
then ``CKPT_STEP``, ``FINETUNE`` and ``NO_LOAD_OPTIM`` speak of ``LOAD`` too:
rerunning the same command resumes. Without ``LOAD`` they
speak of the run's own checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megads.checkpoint.format.folders import (
    NAME,
    CheckpointRef,
    candidates,
    checkpoints_in,
    iteration_of,
    list_checkpoints,
)
from megads.checkpoint.format.manifest import MANIFEST, Manifest, read_manifest
from megads.checkpoint.function.compare import check_conventions
from megads.checkpoint.lora.base import base_of, is_adapters
from megads.checkpoint.resume.compatibility import SHAPE_SETTINGS, check_model, lacks_retriever
from megads.config.optimizers import OPTIMIZERS
from megads.config.rules.allowed_changes import allowed
from megads.config.schema import RunConfig
from megads.config.tree import env_name
from megads.errors import CheckpointError
from megads.text.plural import listed


@dataclass(frozen=True)
class RestorePlan:
    """What a run takes of a checkpoint besides the weights."""

    progress: bool  # iteration, position in the data, and the schedule, which follows from it
    optimizer: bool
    imported: bool = False  # weights of another program, which come with nothing else
    is_base: bool = False  # weights that are frozen: of those that are trained it has none
    has_retriever: bool = True  # whether it has all weights of a model that looks at neighbours, if this is one

    def text(self) -> str:
        """Return what is taken and what not, in words."""
        if self.is_base:
            return "frozen weights, new adapters"
        if not self.has_retriever:
            return "weights of a decoder, a new encoder of neighbours and new attention to them"
        if self.imported:
            return "imported weights"
        parts = {"optimizer": self.optimizer, "position": self.progress}
        left = [name for name, is_taken in parts.items() if not is_taken]
        taken = ["weights", *(name for name in parts if name not in left)]
        return listed(taken) + (f", not {listed(left, 'or')}" if left else "")


@dataclass(frozen=True)
class StartCheckpoints:
    """The checkpoints from which a run may start."""

    paths: tuple[Path, ...]  # oldest first, at least one
    is_own: bool  # the run's own, not those of ``LOAD``
    is_only: bool = False  # the user named one, which no other may replace
    has_begun: bool = False  # the run began by ``LOAD`` and resumes now: settings of the beginning have been applied

    def candidates(self) -> Iterator[CheckpointRef]:
        """Yield those whose manifest and sizes are right, the newest first; the user's own choice alone.

        Raises:
            CheckpointError: none is right, or not the one that the user named.
        """
        if self.is_only:
            path = self.paths[-1]
            yield CheckpointRef(path, read_manifest(path))
        else:
            yield from candidates(list(self.paths))


def find_start(run: RunConfig, own: Path) -> StartCheckpoints | None:
    """Return where a run starts, whose own checkpoints are in the folder ``own``; None: with new weights.

    Raises:
        CheckpointError: there is nothing where the settings say, it cannot be read, or they contradict each other.
    """
    try:
        return _find_start(run, own)
    except OSError as error:
        raise CheckpointError(f"{error.filename}: {error.strerror}; use a folder that you can read") from None


def _find_start(run: RunConfig, own: Path) -> StartCheckpoints | None:
    wanted = run.checkpoint
    mine, step = list_checkpoints(own), wanted.step
    is_other = bool(wanted.load) and not names_own(wanted.load, own)
    if wanted.finetune and not is_other:
        _refuse_finetune(wanted.load)
    if mine and (hint := _import_hint(own, mine)):
        raise CheckpointError(f"{own}: {hint}; use another CKPT_DIR and LOAD=DST")
    if is_other and mine:
        return StartCheckpoints(tuple(mine), is_own=True, has_begun=True)
    if is_other:
        found = _checkpoints_of_load(Path(wanted.load))
        is_only = bool(step) or found == [Path(wanted.load)]
        return StartCheckpoints(_of_step(found, step, Path(wanted.load)), is_own=False, is_only=is_only)
    step = goes_back_to(run, own)
    if mine or step:
        return StartCheckpoints(_of_step(mine, step, own), is_own=True, is_only=bool(step))
    if run.model.lora_rank:
        raise CheckpointError(
            f"LORA_RANK={run.model.lora_rank} trains adapters of weights that are trained already, and there are none; "
            "set LOAD to a run or a checkpoint (`megads checkpoint import-hf` makes one)"
        )
    return None


def goes_back_to(run: RunConfig, own: Path) -> int:
    """Return the iteration of the run's own checkpoint that the settings name, 0 when they name none."""
    wanted = run.checkpoint
    if not wanted.load:
        return wanted.step
    if not names_own(wanted.load, own):
        return 0
    return wanted.step or max(iteration_of(Path(wanted.load)), 0)


def names_own(load: str, own: Path) -> bool:
    """Return whether ``LOAD`` is the run's own folder, as scripts of Megatron-LM have it at every start, or in it."""
    # Path.resolve raises on links that go in a circle.
    place, mine = Path(os.path.realpath(load)), Path(os.path.realpath(own))
    return mine in (place, place / "checkpoints", place.parent if NAME.match(place.name) else place)


def _refuse_finetune(load: str) -> None:
    if load:
        raise CheckpointError(
            f"FINETUNE=1 starts a new run with the weights of LOAD={load}, which is this run's own folder; "
            "give the new run another RUN_NAME, RUN_DIR or CKPT_DIR"
        )
    raise CheckpointError("FINETUNE=1 needs the checkpoint whose weights it takes; set LOAD=RUN, or drop FINETUNE")


def _checkpoints_of_load(load: Path) -> list[Path]:
    """Return the checkpoints in ``LOAD``, oldest first."""
    if not os.path.exists(load):
        raise CheckpointError(f"LOAD={load}: not found; pass a run, a folder of checkpoints or one of them")
    found = checkpoints_in(load)
    if hint := _import_hint(load, found):
        raise CheckpointError(f"LOAD={load}: {hint}, for LOAD=DST")
    if not found and NAME.match(load.name):
        return [load]
    if not found:
        raise CheckpointError(
            f"LOAD={load}: holds no checkpoint; pass a run, a folder of checkpoints (iter_0000050) or one of them"
        )
    return found


def _of_step(paths: list[Path], step: int, where: Path) -> tuple[Path, ...]:
    """Return the checkpoint of iteration ``step``; 0: all of them."""
    if not step:
        return tuple(paths)
    found = tuple(path for path in paths if iteration_of(path) == step)
    if not found:
        there = listed([str(iteration_of(path)) for path in paths][-20:]) if paths else "none"
        raise CheckpointError(f"{where}: no checkpoint of CKPT_STEP={step}; there are: {there}")
    return found


def restore_plan(run: RunConfig, start: StartCheckpoints, path: Path, manifest: Manifest) -> RestorePlan:
    """Return what the run takes of the checkpoint ``path`` besides its weights.

    Raises:
        CheckpointError: the optimizer's state is wanted and is not there; or the run was not
            begun by ``FINETUNE``, which is asked for.
    """
    wanted = run.checkpoint
    if not start.is_own and lacks_retriever(run, manifest):
        return RestorePlan(progress=False, optimizer=False, has_retriever=False)
    if run.model.lora_rank and not is_adapters(manifest):
        return RestorePlan(progress=False, optimizer=False, is_base=True)
    if wanted.finetune and not start.is_own:
        return RestorePlan(progress=False, optimizer=False)
    earlier = manifest.settings.get("checkpoint", {})
    if wanted.finetune and not earlier.get("finetune"):
        raise CheckpointError(
            f"{path}: the run in this folder did not start with FINETUNE=1; drop it to resume that run, "
            "or use another RUN_NAME or RUN_DIR"
        )
    if run.train.evaluate_only:
        return RestorePlan(progress=True, optimizer=False)
    optimizer = manifest.has_optimizer and (wanted.load_optim or start.has_begun)
    was, now = manifest.settings.get("optim", {}).get("optimizer", "adamw"), run.optim.optimizer
    if optimizer and was != now:
        raise CheckpointError(
            f"{path}: was trained with OPT={was}, and OPT={now} cannot resume from its optimizer state; "
            f"set OPT={was}, or NO_LOAD_OPTIM=1 with another RUN_NAME and LOAD to start with fresh optimizer state"
        )
    if optimizer:
        _check_fixed(run, path, manifest)
    # What was imported is at iteration 0: it never had an optimizer.
    if not manifest.has_optimizer and wanted.load_optim and manifest.iteration:
        other = "" if start.is_own else ", or FINETUNE=1 to start at iteration 0 with its weights"
        raise CheckpointError(
            f"{path}: has no optimizer state: it was saved with NO_SAVE_OPTIM=1; "
            f"set NO_LOAD_OPTIM=1 to resume without{other}"
        )
    return RestorePlan(progress=True, optimizer=optimizer, imported=not (manifest.iteration or manifest.has_optimizer))


def _check_fixed(run: RunConfig, path: Path, manifest: Manifest) -> None:
    """Reject settings that differ from those that the optimizer's state was made with."""
    before = manifest.settings.get("optim", {})
    for key in OPTIMIZERS[run.optim.optimizer].fixed:
        was, now = before.get(key, getattr(run.optim, key)), getattr(run.optim, key)
        if was != now:
            name = env_name(f"optim.{key}")
            raise CheckpointError(
                f"{path}: the state of OPT={run.optim.optimizer} was made with {name}={was}, this run has "
                f"{now}; set {name}={was}, or NO_LOAD_OPTIM=1 with another RUN_NAME and LOAD to start with "
                "fresh optimizer state"
            )


def check_start(run: RunConfig, own: Path) -> tuple[StartCheckpoints, CheckpointRef, RestorePlan] | None:
    """Return the checkpoint that a run starts from and what it takes of it, None for new weights.

    Damage that only reading every byte shows is found later; the ranks then take an older one.

    Raises:
        CheckpointError: there is none where the settings say, all are damaged, or it is of another model.
    """
    start = find_start(run, own)
    if start is None:
        return None
    found = next(start.candidates())
    check_model(found.path, found.manifest, run, is_own=start.is_own)
    if run.model.lora_rank and is_adapters(found.manifest):
        base_of(found.path, found.manifest, run.checkpoint.load)
    plan = restore_plan(run, start, found.path, found.manifest)
    check_function(run, found, plan)
    return start, found, plan


def check_function(run: RunConfig, found: CheckpointRef, plan: RestorePlan) -> list[str]:
    """Compare conventions with the checkpoint's, but for those of ``check_model``; return lines about allowed changes.

    Raises:
        CheckpointError: one differs, and nobody asked for that.
    """
    if not plan.has_retriever:
        return []
    continues = plan.progress and not run.train.evaluate_only
    skipped = set(SHAPE_SETTINGS) - allowed(run)
    return check_conventions(found.path, found.manifest, run, continues=continues, skipped=skipped)


_PLACES = "a run, a folder of checkpoints or a checkpoint"


def source_of(place: Path, step: int | None = None) -> CheckpointRef:
    """Return the checkpoint that a user means by ``place``: a run, a folder of checkpoints or a checkpoint.

    ``step`` is the iteration; None: the newest that is valid.

    Raises:
        CheckpointError: there is none, or it is damaged. One that was named is not replaced by another.
    """
    try:
        place.stat()
        found = checkpoints_in(place)
        hint = _import_hint(place, found)
    except OSError as error:
        raise CheckpointError(f"{place}: {error.strerror}; pass {_PLACES}") from None
    if hint:
        raise CheckpointError(f"{place}: {hint}")
    if not found and iteration_of(place) >= 0:
        read_manifest(place)
    if not found:
        raise CheckpointError(f"{place}: holds no checkpoint; pass {_PLACES}")
    if step is None and found != [place]:
        return next(candidates(found))
    path = next((each for each in found if step in (None, iteration_of(each))), None)
    if path is None:
        there = ", ".join(str(iteration_of(each)) for each in found[-5:])
        raise CheckpointError(f"{place}: no checkpoint of iteration {step}; the newest are {there}")
    return CheckpointRef(path, read_manifest(path))


_MEGATRON = ("mp_rank_*/model_optim_rng.pt", "mp_rank_*/model_rng.pt", "mp_rank_*/distrib_optim.pt")
_DEEPSPEED = ("mp_rank_*_model_states.pt", "layer_*-model_*states.pt", "*zero_pp_rank_*_optim_states.pt")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


def _import_hint(place: Path, found: list[Path]) -> str:
    """Return which other program wrote ``place`` and how to import it; empty if megads wrote it, as it did ``found``.

    Only names are read.
    """
    if (found and (found[-1] / MANIFEST).exists()) or not place.is_dir() or (place / MANIFEST).exists():
        return ""
    if is_hf_folder(place):
        return f"a Hugging Face folder; `megads checkpoint import-hf {place} DST` makes a checkpoint of it"
    program = _megatron_of(place)
    if program == _TORCH_DIST:
        return "a torch.distributed checkpoint; convert it to Megatron's torch format, which import-megatron reads"
    if program == _LM:
        return f"a Megatron-LM checkpoint; `megads checkpoint import-megatron {place} DST` makes one of megads of it"
    if program:
        return f"a Megatron-DeepSpeed folder; `megads checkpoint import-megatron {place} DST` makes a checkpoint of it"
    return ""


_TORCH_DIST, _LM, _DS = "torch_dist", "Megatron-LM", "Megatron-DeepSpeed"


def _megatron_of(place: Path) -> str:
    """Return which Megatron wrote ``place``, or that it did in the format torch_dist; empty: none. Names are read."""
    inside = [place, place / "release", *reversed(list_checkpoints(place)[-1:])]
    deepspeed = [place, *sorted(place.glob("global_step*"))[-1:]]
    tracked = (place / "latest_checkpointed_iteration.txt").is_file() or (place / "latest").is_file()
    if any(_any(each, (".metadata", "*.distcp")) for each in inside):
        return _TORCH_DIST
    if any(_any(each, _MEGATRON) for each in inside):
        return _LM
    return _DS if any(_any(each, _DEEPSPEED) for each in deepspeed) or tracked else ""


def is_megatron_folder(place: Path) -> bool:
    """Return whether ``place`` holds a checkpoint of Megatron-LM or Megatron-DeepSpeed, and none of megads."""
    found = checkpoints_in(place)
    if (found and (found[-1] / MANIFEST).exists()) or (place / MANIFEST).exists():
        return False
    return place.is_dir() and _megatron_of(place) in (_LM, _DS)


def is_hf_folder(place: Path) -> bool:
    """Return whether ``place`` holds a model of Hugging Face; only names are read."""
    return (place / "config.json").is_file() and _any(place, _WEIGHTS)


def _any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)
