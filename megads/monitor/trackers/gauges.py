"""Rows as gauges for dashboards: a name, labels and a number for each entry; and where they are sent."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from megads.errors import ConfigError

PREFIX = "megads"
LABELLED = {"valid_loss": "corpus", "test_loss": "corpus", "time": "part", "task": "task", "memory": "kind"}
"""First part of a key with a ``/`` -> the label that takes the rest."""
HERE = "127.0.0.1"


@dataclass(frozen=True)
class Gauge:
    """One number of a row: ``name`` has letters, digits and _ only."""

    name: str
    value: float
    label: str = ""
    label_value: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What a later value of the same gauge has in common with it."""
        return self.name, self.label, self.label_value


def gauges_of(row: Mapping[str, Any]) -> list[Gauge]:
    """Return the numbers of a row; NaN, Inf, null and text have none."""
    found = []
    for key, value in row.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        try:
            number = float(value)
        except OverflowError:
            continue
        if math.isfinite(number):
            head, slash, rest = key.partition("/")
            labelled = bool(slash) and head in LABELLED
            name = _name(head if labelled else key)
            found.append(Gauge(name, number, LABELLED[head], rest) if labelled else Gauge(name, number))
    return found


def _name(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", key)


def read_address(text: str) -> tuple[str, int]:
    """Return host and port of ``9400`` (this host only) or ``HOST:PORT``; 0 is any free port.

    Raises:
        ConfigError: it is neither.
    """
    host, colon, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or (colon and not host):
        raise ConfigError(
            f"PROMETHEUS_ADDRESS={text}: not an address; use a port, e.g. 9400 (this host only), or HOST:PORT, e.g. "
            "0.0.0.0:9400 (every interface)"
        )
    return host.strip("[]") or HERE, int(port)


def read_endpoint(text: str) -> str:
    """Return the address that metrics are posted to: ``http://HOST:4318`` gets ``/v1/metrics``.

    Raises:
        ConfigError: it is not an address of a web server.
    """
    try:
        parts = urlsplit(text.strip())
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"OTLP_ENDPOINT={text}: not an address; use that of a collector's HTTP receiver, e.g. http://HOST:4318"
        )
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith("/v1/metrics") else f"{path}/v1/metrics").geturl()
