"""Settings that hold a secret are refused before anything is written."""

from __future__ import annotations

from collections.abc import Mapping

from megads.config.schema import RunConfig
from megads.config.tree import env_name, fields, value_of
from megads.errors import ConfigError
from megads.text.secrets import hidden


def refuse_secrets(run: RunConfig, env: Mapping[str, str]) -> None:
    """Refuse settings that hold a secret: they are written to the run folder, the log and the trackers.

    Raises:
        ConfigError: names the setting, not the secret.
    """
    for name in fields():
        value = value_of(run, name)
        if isinstance(value, str) and value and (shown := hidden(value, env)) != value:
            raise ConfigError(
                f"{env_name(name) or name}={shown} holds a key or password, and settings are written to the run "
                "folder; keep it where its program looks for it (an environment variable, ~/.netrc)"
            )
