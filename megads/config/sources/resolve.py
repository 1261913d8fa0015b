"""Put the layers of settings on top of each other and remember where each value came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megads.config.schema import OPTIMIZER_DEFAULTS, RunConfig
from megads.config.setting import Decides, Origin
from megads.config.sources.config_file import SETTING as CONFIG_FILE
from megads.config.sources.config_file import read_settings
from megads.config.sources.env_names import name_notes, names_of, refuse_unsupported
from megads.config.sources.flags import Given, add_given, read_flags
from megads.config.sources.megatron_defaults import LAYER as MEGATRON_LAYER
from megads.config.sources.megatron_defaults import MEGADS, MEGATRON, defaults_for, is_megatron, refuse_missing
from megads.config.sources.parse import did_you_mean, parse, switch
from megads.config.sources.presets import Layer, read_machine, read_preset
from megads.config.tree import env_name, extra, fields, nested, settings
from megads.errors import ConfigError
from megads.families.table import FAMILY_DEFAULTS

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
    """A run's settings.

    Attributes:
        run: the settings; before ``derive`` sizes that follow from others are 0.
        origins: by dotted name, where each value came from.
        notes: lines worth showing to the user.
    """

    run: RunConfig
    origins: dict[str, Origin]
    notes: tuple[str, ...] = ()


@dataclass
class _Stack:
    """Values and origins while layers are put on top of each other."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, name: str, value: Any, origin: Origin) -> None:
        self.values[name] = value
        self.origins[name] = origin

    def rank(self, name: str) -> int:
        return rank_of(self.origins[name])

    def shown(self, name: str) -> str:
        return f"{env_name(name)}={self.values[name]} ({self.origins[name]})"


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

    default < optimizer < family < preset < machine < config file < env < cli < checkpoint.

    Megatron-LM's defaults, where they hold (``megads.config.sources.megatron_defaults``), are above ours. A
    command of Megatron-LM without a preset means the same on every machine: the machine's
    settings are skipped.

    ``env`` is passed in, never read from ``os.environ``, so a test or a dry run sees exactly
    the environment it names. An empty variable counts as unset, as in ``${TP:-1}``. Of
    settings that determine each other (``_settle``) the higher layer wins.

    Args:
        preset: ``--preset``; None: ``MODEL_ARCH`` of ``env``, if any.
        env: the environment.
        overrides: ``--set``, dotted name -> text.
        flags: other options of the command line (``megads.config.sources.flags``) and the words that follow them.
        machine: name of ``envs/<machine>.yaml``.
        root: the checkout; None: the one this file is in.
        num_hosts: hosts of the run, by which a machine's batches differ; 0: not known, taken as NHOSTS or 1.
        checkpoint: what ``USE_CHECKPOINT_ARGS`` takes of a checkpoint.

    Raises:
        ConfigError: one line that names the value, where it came from, and what would work.
    """
    refuse_unsupported(env)
    read = read_flags(flags)
    given = _overrides(overrides or {}, read.given)
    from_env = _environment(env)
    chosen, chosen_origin = _choose_preset(preset, from_env, given)
    machine_name = given["machine"][0] if "machine" in given else machine
    machine_layer = read_machine(machine_name, root or Path(__file__).parents[3])
    config_file = {**from_env, **given}.get(CONFIG_FILE, ("",))[0]
    filed = read_settings(str(config_file)) if config_file else {}
    by_megatron, by_megatron_origin = is_megatron(chosen is not None, given, from_env, filed)
    fits = machine_name in chosen.fits if chosen else by_megatron

    stack = _Stack(notes=list(read.notes))
    used_machine = None if fits else machine_layer
    _put_defaults(stack, [*filter(None, (chosen, used_machine)), _as_layer(filed)], from_env, given, by_megatron)
    asked_hosts = {**from_env, **given}.get("launch.num_hosts", (0,))[0]
    below = _put_files(stack, chosen, used_machine, num_hosts or asked_hosts or 1)
    for name, (value, origin) in [*filed.items(), *from_env.items(), *given.items()]:
        stack.put(name, value, origin)
    if checkpoint:
        _put_checkpoint(stack, checkpoint)
    if not fits:
        _note_width(stack, machine_layer, below)
    if by_megatron and not (chosen or "preset" in filed):  # a run's own file has all that its command gave
        _refuse_missing(stack)
    stack.put("defaults", MEGATRON if by_megatron else MEGADS, by_megatron_origin)
    if chosen or "preset" not in filed:
        stack.put("preset", chosen.origin.detail if chosen else "", chosen_origin)
    by_name = Origin("env", "MACHINE") if env.get("MACHINE") == machine_name else Origin("derived", "host name")
    stack.put("machine", machine_name, given["machine"][1] if "machine" in given else by_name)
    _settle(stack)
    run = RunConfig.model_validate(nested(stack.values))
    return Resolved(run, stack.origins, (*stack.notes, *name_notes(env)))


def _as_layer(filed: Given) -> Layer:
    return Layer(Origin("config"), {name: value for name, (value, _) in filed.items()})


def _put_defaults(stack: _Stack, layers: list[Layer], from_env: Given, given: Given, by_megatron: bool) -> None:
    """Put the defaults, and those that go with what ``layers`` and what is above them say of optimizer and family."""
    for name, each in fields().items():
        stack.put(name, each.default, Origin("default"))
    if by_megatron:
        _put_megatron(stack, layers, from_env, given)
    _put_bundle(stack, "optim.optimizer", OPTIMIZER_DEFAULTS, layers, from_env, given)
    _put_bundle(stack, "model.family", FAMILY_DEFAULTS, layers, from_env, given)


def _environment(env: Mapping[str, str]) -> Given:
    """Return what the environment gives, by dotted name."""
    result = {}
    for name, each in fields().items():
        given = [variable for variable in names_of(name) if env.get(variable)]
        found = {variable: _parsed(env[variable], name, Origin("env", variable)) for variable in given}
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
            if not env.get(variable) or not _switch(env[variable], variable):
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


def _overrides(overrides: Mapping[str, str], result: Given) -> Given:
    """Add what ``--set`` gives to ``result``, which holds the other options."""
    known = fields()
    for name, text in overrides.items():
        if name not in known:
            raise ConfigError(f"--set {name}={text}: no setting named {name!r}{_hint(name)}")
        origin = Origin("cli", f"--set {name}")
        add_given(result, name, _parsed(text, name, origin), origin)
    return result


def _hint(name: str) -> str:
    key = name.rpartition(".")[2]
    for known in fields():
        if key.upper() in names_of(known) or key == known.rpartition(".")[2]:
            return f"; did you mean {known}?"
    return did_you_mean(name, list(fields())) or "; `megads config` lists them"


def _parsed(text: str, name: str, origin: Origin) -> Any:
    try:
        return parse(text, fields()[name])
    except ValueError as error:
        where = origin.detail if origin.layer == "cli" else str(origin)
        raise ConfigError(f"{where}: {error}") from None


def _switch(text: str, variable: str) -> bool:
    try:
        return switch(text)
    except ValueError as error:
        raise ConfigError(f"env {variable}: {error}") from None


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


def _put_bundle(
    stack: _Stack,
    setting: str,
    bundles: Mapping[str, Mapping[str, Any]],
    layers: list[Layer],
    from_env: Given,
    given: Given,
) -> None:
    """Put the defaults that go with what the highest layer says of ``setting``."""
    chosen = _highest(setting, stack.values[setting], layers, from_env, given)
    for name, value in bundles.get(chosen, {}).items():
        stack.put(name, value, Origin(setting.rpartition(".")[2], chosen))


def _highest(setting: str, default: Any, layers: list[Layer], from_env: Given, given: Given) -> Any:
    """Return what the highest layer says of ``setting``."""
    chosen = default
    for layer in layers:
        chosen = layer.settings.get(setting, chosen)
    for source in (from_env, given):
        chosen = source.get(setting, (chosen,))[0]
    return chosen


def _put_megatron(stack: _Stack, layers: list[Layer], from_env: Given, given: Given) -> None:
    """Put Megatron-LM's defaults."""

    def chosen(name: str) -> Any:
        return _highest(name, stack.values[name], layers, from_env, given)

    for name, value in defaults_for(chosen).items():
        stack.put(name, value, MEGATRON_LAYER)


_GIVEN = ("config", "env", "cli", "checkpoint")


def _refuse_missing(stack: _Stack) -> None:
    """Refuse a command without a number that Megatron-LM demands; a checkpoint may give the model's shape."""
    if not stack.values["checkpoint.use_args"] or any(each.layer == "checkpoint" for each in stack.origins.values()):
        refuse_missing({name for name, each in stack.origins.items() if each.layer in _GIVEN})


def _put_files(stack: _Stack, preset: Layer | None, machine: Layer | None, num_hosts: int) -> dict[str, Any]:
    """Put what preset and machine say, where there is one; return the values below the highest of them."""
    if machine:
        _put_by_hosts(stack, machine, preset, num_hosts)
    below = dict(stack.values)
    for layer in filter(None, (preset, machine)):
        below = dict(stack.values)
        for name, value in layer.settings.items():
            stack.put(name, value, layer.origin)
    return below


def _put_by_hosts(stack: _Stack, machine: Layer, preset: Layer | None, count: int) -> None:
    """Put the machine's settings for ``count`` hosts where the preset has none.

    A preset that says one number of the batch means all of them.
    """
    said = set(preset.settings) if preset else set()
    if said & set(_BATCH):
        said |= set(_BATCH)
    for name, (value, origin) in machine.for_hosts(count).items():
        if name not in said:
            stack.put(name, value, origin)


def _put_checkpoint(stack: _Stack, checkpoint: Layer) -> None:
    """Put the model of a checkpoint, which can have no other; its tokenizer may lie elsewhere now, as the user says."""
    for name, value in checkpoint.settings.items():
        contradicts = stack.origins[name].layer in ("env", "cli") and stack.values[name] != value
        if contradicts and not name.startswith("model."):
            stack.notes.append(f"{stack.shown(name)} is used, not {value} ({checkpoint.origin})")
            continue
        if contradicts:
            stack.notes.append(f"{stack.shown(name)} is overridden by {value} ({checkpoint.origin})")
        stack.put(name, value, checkpoint.origin)


def _note_width(stack: _Stack, machine: Layer, below: Mapping[str, Any]) -> None:
    """Say once that the machine changed the preset's width, and how to get it back."""
    changed = [
        f"{env_name(name)}={stack.values[name]} (not {below[name]})"
        for name in ("model.hidden_size", "model.num_heads", "model.seq_length")
        if stack.origins[name] == machine.origin and stack.values[name] != below[name]
    ]
    if changed:
        stack.notes.append(f"{machine.origin}: {', '.join(changed)}{'; ' if machine.note else ''}{machine.note}")


SHARES = ("data.train_split", "data.val_split", "data.test_split")
"""What SPLIT says in one."""

# Settings that determine each other: of these one is enough.
_LENGTHS = ("train.train_tokens", "train.train_samples", "train.train_iters")
_BATCHES = ("train.global_batch", "train.grad_acc_steps")
_BATCH = ("train.micro_batch", *_BATCHES)


def _settle(stack: _Stack) -> None:
    """Drop what a lower layer says against a higher one about the same thing.

    Dropped values are 0 and are derived at launch. Values of one layer stay; whether they
    hold together is known when the ranks are, see ``megads.config.derive``.
    """
    for group in (_LENGTHS, _BATCHES):
        _keep_highest(stack, [name for name in group if stack.values[name]])
    for part in ("warmup", "decay", "cooldown", "constant"):
        _settle_length(stack, part)
    if stack.values["data.split"]:
        _settle_split(stack)


def _settle_length(stack: _Stack, part: str) -> None:
    """Keep of a part of the schedule what the highest layer says; a fraction may be 0 on purpose."""
    share = f"optim.lr_{part}_frac"
    given = [name for unit in ("iters", "samples", "tokens") if stack.values[name := f"optim.lr_{part}_{unit}"]]
    for name in given if share in stack.values else []:
        if stack.rank(share) > stack.rank(name):
            _drop(stack, name, share)
    _keep_highest(stack, [name for name in given if stack.values[name]])


def _settle_split(stack: _Stack) -> None:
    """Let the higher of ``SPLIT`` and single shares win; both of one layer are refused at launch."""
    whole, single = "data.split", max(SHARES, key=stack.rank)
    if stack.rank(single) > stack.rank(whole):
        stack.notes.append(f"{stack.shown(whole)} is overridden by {stack.shown(single)}")
        stack.put(whole, "", Origin("default"))
    elif stack.rank(single) < stack.rank(whole) and stack.origins[single].layer == "env":
        stack.notes.append(f"{stack.shown(single)} is overridden by {stack.shown(whole)}")


def _keep_highest(stack: _Stack, given: list[str]) -> None:
    if not given:
        return
    winner = max(given, key=stack.rank)
    for name in given:
        if stack.rank(name) < stack.rank(winner):
            _drop(stack, name, winner)


def _drop(stack: _Stack, name: str, winner: str) -> None:
    # A machine says in one line that it replaces a preset's numbers; a default is nobody's wish.
    if stack.origins[winner].layer != "machine" and stack.origins[name].layer != "default":
        stack.notes.append(f"{stack.shown(name)} is overridden by {stack.shown(winner)}")
    stack.put(name, 0, Origin("default"))
