"""What the user asked for, as data: nothing below reads the process's own environment."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from megads.config.schema import RunConfig
from megads.config.sources.presets import Layer
from megads.config.sources.resolve import Resolved, resolve
from megads.config.tree import value_of
from megads.errors import ConfigError
from megads.launch.preflight.checkpoint_start import checkpoint_layer, plain_folder
from megads.launch.preflight.retro_project import with_project
from megads.launch.run_folder import BATCH_JOB, Folder, choose_folder
from megads.launch.user_ranks.entry import Started

FRESH = "--fresh"
BESIDE_SETTINGS = ("MEGADS_DEVICE", "MEGADS_BACKEND", "MEGADS_PEAK_TFLOPS")
"""Variables that are no settings and decide how a run goes all the same."""


@dataclass(frozen=True)
class HostFit:
    """How many hosts of its job a run uses, because its batch cannot be shared out over all."""

    most: int
    note: str


@dataclass(frozen=True)
class TrainRequest:
    """One call of ``megads train``."""

    preset: str | None
    pairs: tuple[str, ...]  # of --set
    env: Mapping[str, str]
    hostname: str
    root: Path  # of the checkout, whose envs/ and data-lists/ are used
    python: str  # the interpreter that ranks run
    words: tuple[str, ...] = ()  # the command line after "megads"
    flags: tuple[tuple[str, str], ...] = ()  # options of megads.config.sources.flags, and the words that follow them
    started: Started | None = None  # ranks that the user started; None: ranks are to be started
    fresh: bool = False  # a new run, although the folder of that name has one
    # of megads finetune: the pairs, from the settings before and after derive and the pairs so far
    settle: Callable[[Resolved, RunConfig, tuple[str, ...]], tuple[str, ...]] | None = None
    kept: Layer | None = None  # what a resumed run takes from its checkpoint where the user gives nothing else
    fit: HostFit | None = None  # the hosts that are used; None: all, or NHOSTS
    staged: Mapping[str, str] = field(default_factory=dict)  # variables of ranks whose Python is a staged one
    model_of: Path | None = None  # run folder where USE_CHECKPOINT_ARGS looks first; None: that of the plain name

    def starting_fresh(self) -> TrainRequest:
        """Return this with :attr:`fresh`, and without the option in the command that resumes the run."""
        env = dict(self.env)
        if "MEGADS_COMMAND" in env:
            env["MEGADS_COMMAND"] = env["MEGADS_COMMAND"].replace(f" {FRESH}", "", 1)
        return replace(self, env=env, words=tuple(word for word in self.words if word != FRESH), fresh=True)

    @property
    def fit_notes(self) -> tuple[str, ...]:
        """What the user is told about :attr:`fit`."""
        return (self.fit.note,) if self.fit else ()

    def limited(self, run: RunConfig) -> RunConfig:
        """Return ``run`` with NHOSTS as :attr:`fit` says."""
        if self.fit is None:
            return run
        return run.model_copy(update={"launch": run.launch.model_copy(update={"num_hosts": self.fit.most})})

    def overrides(self) -> dict[str, str]:
        """Return ``--set`` pairs as a mapping.

        Raises:
            ConfigError: a pair has no ``=``, or a key is given twice with different values.
        """
        found: dict[str, str] = {}
        for pair in self.pairs:
            key, equals, value = pair.partition("=")
            if not equals or not key:
                raise ConfigError(f"--set {pair}: expected SECTION.KEY=VALUE, for example --set parallel.tensor=2")
            if found.setdefault(key, value) != value:
                raise ConfigError(f"--set {key}: given twice, as {found[key]!r} and {value!r}")
        return found

    def command(self, names: list[str], folder: Path | None = None, without: Collection[str] = ()) -> str:
        """Return a line that a user can paste to resume this run.

        Args:
            folder: of the run, when the command alone does not mean it.
            without: options that are skipped, with the words that follow them.
        """
        had_a_say = [*names, *(name for name in BESIDE_SETTINGS if self.env.get(name))]
        given = [f"{name}={shlex.quote(self.env[name])}" for name in had_a_say if name in self.env]
        if folder is not None:
            given.insert(0, f"RUN_DIR={shlex.quote(str(folder))}")
        script = self.env.get("MEGADS_COMMAND", "")
        words = [script] if script else ["megads", *map(shlex.quote, _without(self.words, without))]
        return " ".join([*given, *words])


def _without(words: Sequence[str], options: Collection[str]) -> list[str]:
    """Return ``words`` without ``options``: each an option, or an option and the beginning of what follows it."""
    kept: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        follows = left[0] if left else ""
        for option in options:
            name, _, value = option.partition(" ")
            takes_word = option.endswith(" ") or bool(value)
            if word == name and takes_word and follows.startswith(value):
                left.pop(0)
                break
            if word == option or (takes_word and word.startswith(f"{name}={value}")):
                break
        else:
            kept.append(word)
    return kept


def resolve_request(
    request: TrainRequest, machine: str, num_hosts: int = 0, *, needs_checkpoint: bool = True
) -> Resolved:
    """Return the settings of ``request`` on ``num_hosts`` hosts of ``machine``; 0: NHOSTS, or one.

    Args:
        num_hosts: by which a machine's batches differ.
        needs_checkpoint: whether ``USE_CHECKPOINT_ARGS`` is followed, and what is finetuned read; a check of hosts
            reads no checkpoint.

    Raises:
        ConfigError: a setting is wrong.
        CheckpointError: ``USE_CHECKPOINT_ARGS`` is set and there is no checkpoint.
    """

    def resolved(checkpoint: Layer | None = None) -> Resolved:
        return with_project(
            resolve(
                request.preset,
                env=request.env,
                overrides=request.overrides(),
                flags=request.flags,
                machine=machine,
                root=request.root,
                num_hosts=num_hosts,
                checkpoint=checkpoint,
            )
        )

    first = resolved(request.kept)
    is_pretrained = bool(first.run.finetune.task and first.run.checkpoint.load)
    if not needs_checkpoint or not (first.run.checkpoint.use_args or is_pretrained):
        return first
    folder = request.model_of or _folder_of_model(request, first.run)
    with_length = is_pretrained and not _gives_length(first)
    layer = checkpoint_layer(first.run, folder, pretrained=is_pretrained, with_length=with_length)
    more = request.kept.settings if request.kept else {}
    return resolved(replace(layer, settings={**layer.settings, **more}))


def _gives_length(resolved: Resolved) -> bool:
    return resolved.origins["model.seq_length"].layer in ("config", "env", "cli")


def _folder_of_model(request: TrainRequest, run: RunConfig) -> Path:
    """Return the run folder that this command means, as far as it is known before ``derive``."""
    plain = plain_folder(run)
    if not run.checkpoint.load or run.dir:
        return plain
    return folder_of_request(request, run, run.model_copy(update={"name": plain.name})).run_dir(run)


def folder_of_request(request: TrainRequest, asked: RunConfig, run: RunConfig, *, submits: bool = False) -> Folder:
    """Return the run folder that ``request`` means; see :func:`megads.launch.run_folder.choose_folder`.

    Args:
        asked: its settings before any value was derived.
        run: its settings with a name.
        submits: whether the run starts in a job of its own, whatever job this process is in.
    """
    named = any(value_of(asked, name) for name in ("dir", "name", "checkpoint.dir"))
    in_job = not submits and any(request.env.get(name) for name in BATCH_JOB)
    return choose_folder(run, named=named, in_job=in_job, fresh=request.fresh)
