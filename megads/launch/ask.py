"""What the user asked for, as data: nothing below reads the process's own environment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from megads.config.resolve import Resolved, resolve
from megads.errors import ConfigError

BESIDE_SETTINGS = ("MEGADS_DEVICE", "MEGADS_BACKEND", "MEGADS_PEAK_TFLOPS")
"""Variables that are no settings and decide how a run goes all the same."""


@dataclass(frozen=True)
class Ask:
    """One call of ``megads train``."""

    preset: str | None
    pairs: tuple[str, ...]  # of --set
    env: Mapping[str, str]
    hostname: str
    root: Path  # of the checkout, whose envs/ and data-lists/ are used
    python: str  # the interpreter that ranks run
    words: tuple[str, ...] = ()  # the command line after "megads"
    flags: tuple[tuple[str, str], ...] = ()  # options of megads.config.flags, and the words that follow them

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

    def command(self, names: list[str], folder: Path | None = None) -> str:
        """Return a line that a user can paste to go on with this run.

        Args:
            names: the environment variables that decided a setting.
            folder: of the run, when the command alone does not mean it.
        """
        had_a_say = [*names, *(name for name in BESIDE_SETTINGS if self.env.get(name))]
        given = [f"{name}={shlex.quote(self.env[name])}" for name in had_a_say if name in self.env]
        if folder is not None:
            given.insert(0, f"RUN_DIR={shlex.quote(str(folder))}")
        script = self.env.get("MEGADS_COMMAND", "")
        words = [script] if script else ["megads", *map(shlex.quote, self.words)]
        return " ".join([*given, *words])


def resolve_ask(ask: Ask, machine: str, num_hosts: int) -> Resolved:
    """Return the settings of ``ask`` on ``num_hosts`` hosts of ``machine``.

    Raises:
        ConfigError: a setting is wrong.
    """
    return resolve(
        ask.preset,
        env=ask.env,
        overrides=ask.overrides(),
        flags=ask.flags,
        machine=machine,
        root=ask.root,
        num_hosts=num_hosts,
    )
