"""Put the layers of settings on top of each other and remember where each value came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megads.config.schema import OPTIMIZER_DEFAULTS, RunConfig
from megads.config.setting import Decides, Origin
from megads.config.sources.config_file import SETTING as CONFIG_FILE
from megads.config.sources.config_file import SHARES, read_settings
from megads.config.sources.env_names import name_notes, read_switch, refuse_unsupported
from megads.config.sources.flags import Given, add_given, read_flags
from megads.config.sources.megatron_defaults import LAYER as MEGATRON_LAYER
from megads.config.sources.megatron_defaults import MEGADS, MEGATRON, defaults_for, is_megatron, refuse_missing
from megads.config.sources.presets import Layer, read_machine, read_preset
from megads.config.tree import env_name, extra, fields, known_key, names_of, nested, read_value, settings
from megads.errors import ConfigError
from megads.families.table import FAMILY_DEFAULTS
from megads.storage.resources import files_root

__all__ = ["LAYERS", "Resolved", "rank_of", "resolve", "settings"]

LAYERS = (
    "derived",
    "default",
    "megatron",
    "optimizer",
    "family",
    "preset",
    "machine",
    "config",
    "env",
    "cli",
    "checkpoint",
)
"""Lowest first. A derived value is overridden by any other."""


@dataclass(frozen=True)
class Resolved:
    """A run's settings."""

    run: RunConfig  # the settings; before ``derive`` sizes that follow from others are 0
    origins: dict[str, Origin]  # by dotted name, where each value came from
    notes: tuple[str, ...] = ()  # lines worth showing to the user


@dataclass
class Values:
    """Values of settings by dotted name, while layers are put on top of each other and what follows is filled."""

    values: dict[str, Any] = field(default_factory=dict)  # of every setting
    origins: dict[str, Origin] = field(default_factory=dict)  # where each value came from
    notes: list[str] = field(default_factory=list)  # lines worth showing to the user

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def put(self, name: str, value: Any, origin: Origin) -> None:
        """Put a value."""
        self.values[name] = value
        self.origins[name] = origin

    def put_all(self, given: Given) -> None:
        """Put values with their origins."""
        for name, (value, origin) in given.items():
            self.put(name, value, origin)

    def derive(self, name: str, value: Any, formula: str) -> None:
        """Put a value that follows from others."""
        self.put(name, value, Origin("derived", formula))

    def fill(self, name: str, value: Any, formula: str) -> None:
        """Put a value that follows from others if nobody gave one (0 or empty)."""
        if not self.values[name]:
            self.derive(name, value, formula)

    def replace(self, name: str, value: Any, formula: str) -> None:
        """Put a value over a given one, and note it."""
        self.notes.append(f"{self.shown(name)} becomes {value}: {formula}")
        self.derive(name, value, formula)

    def rank(self, name: str) -> int:
        """Return the precedence of the layer that a value came from."""
        return rank_of(self.origins[name])

    def shown(self, name: str) -> str:
        """Return a value as a user types it, and its origin."""
        return f"{env_name(name)}={self.values[name]} ({self.origins[name]})"

    def resolved(self) -> Resolved:
        """Return the settings.

        Raises:
            ValidationError: a value is outside its limits.
        """
        return Resolved(RunConfig.model_validate(nested(self.values)), self.origins, tuple(self.notes))


def rank_of(origin: Origin) -> int:
    """Return the precedence of an origin's layer; larger wins."""
    return LAYERS.index(origin.layer)


def resolve(
    preset: str | None = None,
    *,
    env: Mapping[str, str],
    overrides: Mapping[str, str] | None = None,
    flags: Iterable[tuple[str, str]] = (),
    machine: str,
    root: Path | None = None,
    num_hosts: int = 0,
    checkpoint: Layer | None = None,
) -> Resolved:
    """Build a run's settings from their layers.

    default < optimizer < family < preset < machine < config file < env < cli < checkpoint. Of settings that
    determine each other (``_settle``) the higher layer wins.

    Args:
        preset: ``--preset``; None: ``MODEL_ARCH`` of ``env``, if any.
        env: the environment, never read from ``os.environ``; an empty variable counts as unset, as in ``${TP:-1}``.
        overrides: ``--set``, dotted name -> text.
        flags: other options of the command line (``megads.config.sources.flags``) and the words that follow them.
        machine: name of ``envs/<machine>.yaml``.
        root: has ``envs/``; None: that of this copy of megads.
        num_hosts: hosts of the run, by which a machine's batches differ; 0: not known, taken as NHOSTS or 1.
        checkpoint: what ``USE_CHECKPOINT_ARGS`` takes of a checkpoint.

    Raises:
        ConfigError: one line that names the value, where it came from, and what would work.
    """
    refuse_unsupported(env)
    options = read_flags(flags)
    notes = list(options.notes)
    given = _overrides(overrides or {}, options.given, notes)
    from_env = _environment(env)
    user = {**from_env, **given}
    chosen, chosen_origin = _choose_preset(preset, from_env, given)
    host = Origin("env", "MACHINE") if env.get("MACHINE") == machine else Origin("derived", "host name")
    machine, machine_origin = given.get("machine", (machine, host))
    facts = read_machine(machine, root or files_root({}))
    file = str(user[CONFIG_FILE][0]) if CONFIG_FILE in user else ""
    from_file = read_settings(file, notes) if file else {}
    by_megatron, why = is_megatron(chosen is not None, given, from_env, from_file)
    # A command of Megatron-LM without a preset means the same on every machine.
    of_machine = None if (machine in chosen.fits if chosen else by_megatron) else facts
    notes += [note for layer in (chosen, of_machine) if layer for note in layer.notes]
    stack = _stacked(notes, (chosen, of_machine, checkpoint), from_file, user, by_megatron, num_hosts)
    if by_megatron and not (chosen or "preset" in from_file):  # a run's own file has all that its command gave
        _refuse_missing(stack)
    if chosen or "preset" not in from_file:
        stack.put("preset", chosen.origin.detail if chosen else "", chosen_origin)
    stack.put_all({"defaults": (MEGATRON if by_megatron else MEGADS, why), "machine": (machine, machine_origin)})
    _settle(stack)
    stack.notes += name_notes(env)
    return stack.resolved()


def _stacked(
    notes: Iterable[str],
    layers: tuple[Layer | None, Layer | None, Layer | None],
    from_file: Given,
    user: Given,
    by_megatron: bool,
    num_hosts: int,
) -> Values:
    """Return defaults, preset and machine, a file, what the user gives, and a checkpoint, put on top of each other.

    Megatron-LM's defaults, where they hold (``megads.config.sources.megatron_defaults``), are above ours.
    """
    stack, (preset, machine, checkpoint) = Values(notes=list(notes)), layers
    of_preset, of_machine, kept = (layer.given if layer else {} for layer in layers)
    _put_defaults(stack, (of_preset, of_machine, from_file, user, kept), by_megatron)
    if machine:
        _put_by_hosts(stack, machine, preset, num_hosts or user.get("launch.num_hosts", (0,))[0] or 1)
    stack.put_all(of_preset)
    before = dict(stack.values)
    for source in (of_machine, from_file, user):
        stack.put_all(source)
    if checkpoint:
        _put_checkpoint(stack, checkpoint)
    if machine:
        _note_width(stack, machine, before)
    return stack


def _put_defaults(stack: Values, sources: tuple[Given, ...], by_megatron: bool) -> None:
    """Put the defaults, and those that go with the optimizer and the family that the highest of ``sources`` names."""

    def chosen(name: str) -> Any:
        return next((source[name][0] for source in reversed(sources) if name in source), stack[name])

    for name, each in fields().items():
        stack.put(name, each.default, Origin("default"))
    if by_megatron:
        for name, value in defaults_for(chosen).items():
            stack.put(name, value, MEGATRON_LAYER)
    for setting, bundles in (("optim.optimizer", OPTIMIZER_DEFAULTS), ("model.family", FAMILY_DEFAULTS)):
        bundle = chosen(setting)
        for name, value in bundles.get(bundle, {}).items():
            stack.put(name, value, Origin(setting.rpartition(".")[2], bundle))


def _environment(env: Mapping[str, str]) -> Given:
    """Return what the environment gives, by dotted name."""
    result = {}
    for name, each in fields().items():
        given = [variable for variable in names_of(name) if env.get(variable)]
        found = {variable: read_value(name, env[variable], f"env {variable}") for variable in given}
        first = next(iter(found), "")
        for variable, value in found.items():
            if value != found[first]:
                raise ConfigError(
                    f"env {first}={env[first]} and {variable}={env[variable]} are two names of {name} "
                    f"and differ; unset one of them"
                )
        if found:
            result[name] = (found[first], Origin("env", first))
        for variable, value in extra(each, "switches").items():
            if not read_switch(env, variable):
                continue
            if isinstance(value, Decides):
                result[name] = (value.value, Origin("env", variable))
                continue
            before = result.get(name, (value, None))
            if before[0] != value:
                other = str(before[1]).removeprefix("env ")
                raise ConfigError(
                    f"env {other}={env[other]} and {variable}={env[variable]} contradict each other; unset one"
                )
            result[name] = (value, Origin("env", variable))
    return result


def _overrides(overrides: Mapping[str, str], result: Given, notes: list[str]) -> Given:
    """Add what ``--set`` gives to ``result``, which holds the other options."""
    for word, text in overrides.items():
        name = known_key(word, f"--set {word}={text}", notes)
        where = f"--set {word}"
        add_given(result, name, read_value(name, text, where), Origin("cli", where))
    return result


def _choose_preset(preset: str | None, from_env: Given, given: Given) -> tuple[Layer | None, Origin]:
    """Return the preset that ``--preset``, ``--set preset`` and ``MODEL_ARCH`` agree on."""
    sources = [(preset, Origin("cli", "--preset")), given.get("preset"), from_env.get("preset")]
    asked = [(name, origin) for name, origin in (each for each in sources if each) if name]
    found = [(read_preset(str(name)), origin) for name, origin in asked]
    for (name, origin), (layer, _) in zip(asked, found, strict=True):
        if layer.origin != found[0][0].origin:
            first, first_origin = asked[0]
            drop = "unset MODEL_ARCH" if origin.layer == "env" else f"drop {origin.detail}"
            raise ConfigError(
                f"{first_origin.detail} {first} and {origin.detail}={name} name different presets; "
                f"{drop} or drop {first_origin.detail}"
            )
    return found[0] if found else (None, Origin("default"))


_GIVEN = ("config", "env", "cli", "checkpoint")


def _refuse_missing(stack: Values) -> None:
    """Refuse a command without a number that Megatron-LM demands; a checkpoint may give the model's shape."""
    if not stack["checkpoint.use_args"] or any(each.layer == "checkpoint" for each in stack.origins.values()):
        refuse_missing({name for name, each in stack.origins.items() if each.layer in _GIVEN})


def _put_by_hosts(stack: Values, machine: Layer, preset: Layer | None, count: int) -> None:
    """Put the machine's settings for ``count`` hosts where the preset has none.

    A preset that says one number of the batch means all of them.
    """
    said = set(preset.settings) if preset else set()
    if said & set(_BATCH):
        said |= set(_BATCH)
    for name, (value, origin) in machine.for_hosts(count).items():
        if name not in said:
            stack.put(name, value, origin)


def _put_checkpoint(stack: Values, checkpoint: Layer) -> None:
    """Put the model of a checkpoint, which can have no other; its tokenizer may lie elsewhere now, as the user says."""
    for name, value in checkpoint.settings.items():
        contradicts = stack.origins[name].layer in ("env", "cli") and stack[name] != value
        contradicts = contradicts and not (name.startswith("train.") and not stack[name])  # 0: derive it
        if contradicts and not name.startswith("model."):
            stack.notes.append(f"{stack.shown(name)} is used, not {value} ({checkpoint.origin})")
            continue
        if contradicts:
            stack.notes.append(f"{stack.shown(name)} is overridden by {value} ({checkpoint.origin})")
        stack.put(name, value, checkpoint.origin)


def _note_width(stack: Values, machine: Layer, below: Mapping[str, Any]) -> None:
    """Say once that the machine changed the preset's width, and how to get it back."""
    changed = [
        f"{env_name(name)}={stack[name]} (not {below[name]})"
        for name in ("model.hidden_size", "model.num_heads", "model.seq_length")
        if stack.origins[name] == machine.origin and stack[name] != below[name]
    ]
    if changed:
        stack.notes.append(f"{machine.origin}: {', '.join(changed)}{'; ' if machine.note else ''}{machine.note}")


# Settings that determine each other: of these one is enough.
LENGTHS = ("train.train_tokens", "train.train_samples", "train.train_iters")
PLANNED = ("train.planned_tokens", "train.planned_samples", "train.planned_iters")
_BATCHES = ("train.global_batch", "train.grad_acc_steps")
_BATCH = ("train.micro_batch", *_BATCHES)
_CHUNKS = ("parallel.virtual_stages", "parallel.layers_per_virtual_stage")


def _settle(stack: Values) -> None:
    """Drop what a lower layer says against a higher one about the same thing.

    Dropped values are 0 and are derived at launch. Values of one layer stay; whether they
    hold together is known when the ranks are, see ``megads.config.derive``.
    """
    for group in (LENGTHS, PLANNED, _BATCHES, _CHUNKS):
        _keep_highest(stack, [name for name in group if stack[name]])
    for part in ("warmup", "decay", "cooldown", "constant"):
        _settle_length(stack, part)
    if stack["data.split"]:
        _settle_split(stack)


def _settle_length(stack: Values, part: str) -> None:
    """Keep of a part of the schedule what the highest layer says; a fraction may be 0 on purpose."""
    share = f"optim.lr_{part}_frac"
    given = [name for unit in ("iters", "samples", "tokens") if stack[name := f"optim.lr_{part}_{unit}"]]
    for name in given if share in stack.values else []:
        if stack.rank(share) > stack.rank(name):
            _drop(stack, name, share)
    _keep_highest(stack, [name for name in given if stack[name]])


def _settle_split(stack: Values) -> None:
    """Let the higher of ``SPLIT`` and single shares win; both of one layer are refused at launch."""
    whole, single = "data.split", max(SHARES, key=stack.rank)
    if stack.rank(single) > stack.rank(whole):
        stack.notes.append(f"{stack.shown(whole)} is overridden by {stack.shown(single)}")
        stack.put(whole, "", Origin("default"))
    elif stack.rank(single) < stack.rank(whole) and stack.origins[single].layer == "env":
        stack.notes.append(f"{stack.shown(single)} is overridden by {stack.shown(whole)}")


def _keep_highest(stack: Values, given: list[str]) -> None:
    if not given:
        return
    winner = max(given, key=stack.rank)
    for name in given:
        if stack.rank(name) < stack.rank(winner):
            _drop(stack, name, winner)


def _drop(stack: Values, name: str, winner: str) -> None:
    # A machine says in one line that it replaces a preset's numbers; a default is nobody's wish.
    if stack.origins[winner].layer != "machine" and stack.origins[name].layer != "default":
        stack.notes.append(f"{stack.shown(name)} is overridden by {stack.shown(winner)}")
    stack.put(name, 0, Origin("default"))
