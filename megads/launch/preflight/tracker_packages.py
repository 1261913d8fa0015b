"""Which trackers a run uses, decided before a rank starts; no library is imported for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from megads.config.setting import Origin
from megads.config.settings.log import WANDB_ID, TrackConfig
from megads.config.sources.resolve import Resolved
from megads.errors import ConfigError, DependencyError
from megads.monitor.trackers.gauges import read_address, read_endpoint
from megads.monitor.trackers.registry import TRACKERS


def is_installed(package: str) -> bool:
    """Return whether ``import package`` would find one, without importing it."""
    return importlib.util.find_spec(package) is not None


def _may_be_in_image(package: str) -> bool:
    return True  # the image is not looked into


def choose_trackers(
    resolved: Resolved, env: Mapping[str, str], installed: Callable[[str], bool] | None = None
) -> Resolved:
    """Return the settings with every ``auto`` of the trackers decided.

    A key in the environment is a weaker wish than a setting: without the library a note
    reports it, where a setting is refused.

    Args:
        installed: None: in this Python, or in the image of ranks, of which nothing is known.
        env: of the launcher; only whether there is a WANDB_API_KEY is looked at.

    Raises:
        ConfigError: a run there cannot have the id that was given, or an address of metrics is none.
        DependencyError: the library of a tracker that a setting asks for is missing.
    """
    if installed is None:
        installed = _may_be_in_image if resolved.run.launch.container else is_installed
    track, origins, notes = resolved.run.track, dict(resolved.origins), list(resolved.notes)
    changed: dict[str, Any] = {}
    for name, value, why in _choices(track, env):
        changed[name] = value
        origins[f"track.{name}"] = Origin("derived", why)
    if changed.get("wandb_mode") == "online" and not track.wandb_project and not installed("wandb"):
        notes.append(
            "WANDB_API_KEY is set, but wandb is not installed, so nothing goes to Weights & Biases; pip "
            "install wandb, or set WANDB_DISABLED=1"
        )
        changed["wandb_mode"] = "disabled"
    track = track.model_copy(update=changed)
    if track.prometheus_address:
        read_address(track.prometheus_address)
    if track.otlp_endpoint:
        read_endpoint(track.otlp_endpoint)
    for package, asked, wish, without in _needed(track, resolved.origins):
        if asked and not installed(package):
            raise DependencyError(f"{wish} needs the package {package}: pip install {package}, or set {without}")
    if track.wandb_mode != "disabled" and track.wandb_id and not WANDB_ID.fullmatch(track.wandb_id):
        given = f"WANDB_RUN_ID={track.wandb_id} ({origins['track.wandb_id']})"
        raise ConfigError(f"{given} must be at most 64 letters, digits, - and _")
    run = resolved.run.model_copy(update={"track": track})
    return replace(resolved, run=run, origins=origins, notes=tuple(notes))


def _choices(track: TrackConfig, env: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    """Yield settings to decide, their value, and why."""
    if track.tensorboard == "auto":
        yield "tensorboard", *(("on", "TENSORBOARD_DIR") if track.tensorboard_dir else ("off", "no TENSORBOARD_DIR"))
    if track.wandb_mode == "auto":
        wish = "WANDB_PROJECT" if track.wandb_project else "WANDB_API_KEY" if env.get("WANDB_API_KEY") else ""
        yield "wandb_mode", *(("online", wish) if wish else ("disabled", "no WANDB_PROJECT, no WANDB_API_KEY"))
    if track.codecarbon_dir and not track.energy:
        yield "energy", True, "CODECARBON_DIR"


def _needed(track: TrackConfig, origins: Mapping[str, Origin]) -> Iterator[tuple[str, bool, str, str]]:
    """Yield packages, whether they are needed, by which setting, and what does without."""

    def wish(*names: str) -> str:
        given = [origin for name in names if (origin := origins[f"track.{name}"]).layer not in ("default", "derived")]
        return " and ".join(str(origin) for origin in given) or names[0]

    for spec in TRACKERS:
        if spec.package:
            yield spec.package, spec.is_asked_for(track), wish(*spec.settings), spec.without
    yield "codecarbon", track.energy, wish("energy", "codecarbon_dir"), "neither ENERGY nor CODECARBON_DIR"
