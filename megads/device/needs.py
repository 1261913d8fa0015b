"""What vendors, networks and versions need, as rows of ``envs/vendors/needs.yaml``; without torch.

``megads doctor`` compares a host with its rows (``megads.doctor.launcher.vendor_checks``), and a test the machines
of envs/. Nothing here is set by the launcher: a machine's own file does that, and the user's variables come first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from megads.config.setting import Section
from megads.errors import ConfigError
from megads.storage.reading import read_yaml

TABLE = Path("envs/vendors/needs.yaml")
"""In the checkout."""

VendorName = Literal["nvidia", "amd", "intel"]
Level = Literal["required", "recommended", "optional"]
State = Literal["ok", "differs", "missing"]


class Row(Section):
    """What every row has: who it concerns, why, and where that is from."""

    vendors: tuple[VendorName, ...] = Field(min_length=1)
    why: str = Field(min_length=1)
    sources: tuple[str, ...] = Field(min_length=1)


class Fabric(Section):
    """A network: paths of which one exists on its hosts, and the machines of envs/ that have it."""

    paths: tuple[Path, ...]
    machines: tuple[str, ...]


class Mask(Row):
    """A variable that hides devices; a relative one numbers what the vendor's other masks leave."""

    variable: str
    is_relative: bool = False


class Binding(Row):
    """Which cores ranks belong on."""

    how: str


class Allocator(Row):
    """The setting of torch's allocator; ``older`` is its variable's name before torch 2.9."""

    variable: str = "PYTORCH_ALLOC_CONF"
    older: str = ""
    value: str = ""
    harmful: str = ""


class Library(Section):
    """A library through which a communication library reaches a network."""

    name: str
    vendors: tuple[VendorName, ...]
    fabric: str
    files: tuple[str, ...] = Field(min_length=1)
    how: str
    sources: tuple[str, ...] = Field(min_length=1)


class Variable(Row):
    """A variable of a communication library, and which values are right."""

    name: str
    level: Level
    fabric: str = ""
    min_hosts: int = 1
    values: tuple[str, ...] = ()
    pattern: str = ""
    minimum: int = 0
    harmful: tuple[str, ...] = ()
    example: str = ""
    exceptions: dict[str, str] = Field({})

    @model_validator(mode="after")
    def _says_what_is_right(self) -> Variable:
        if not (self.values or self.pattern or self.minimum or self.harmful):
            raise ValueError(f"{self.name}: needs values, pattern, minimum or harmful")
        if self.pattern and not re.fullmatch(self.pattern, self.example):
            raise ValueError(f"{self.name}: {self.example!r} does not match {self.pattern!r}")
        return self

    def state(self, value: str) -> State:
        """Return whether ``value``, empty where it is not set, is right."""
        if not value:
            return "ok" if self.level == "optional" else "missing"
        if value in self.harmful:
            return "differs"
        right = (
            value in self.values
            or (bool(self.pattern) and bool(re.fullmatch(self.pattern, value)))
            or (self.minimum > 0 and value.isdecimal() and int(value) >= self.minimum)
        )
        return "ok" if right or not (self.values or self.pattern or self.minimum) else "differs"

    @property
    def line(self) -> str:
        """What to type."""
        value = self.example or (self.values[0] if self.values else str(self.minimum or ""))
        if not value:
            return f"unset {self.name}"
        return f'export {self.name}="{value}"' if " " in value else f"export {self.name}={value}"


class Version(Section):
    """Versions of a package from ``first`` up to, not including, ``fixed`` that have a defect."""

    package: str
    vendors: tuple[VendorName, ...]
    first: str = "0"
    fixed: str = ""
    defect: str
    devices: str = ""  # a word of the device's name
    fabric: str = ""
    unless: dict[str, str] = Field({})
    sources: tuple[str, ...] = Field(min_length=1)

    def concerns(self, version: str, env: Mapping[str, str]) -> bool:
        """Return whether ``version`` has the defect, and ``env`` does not avoid it."""
        found = _numbers(version)
        known = bool(found) and _numbers(self.first) <= found and (not self.fixed or found < _numbers(self.fixed))
        return known and not (self.unless and all(env.get(name) == value for name, value in self.unless.items()))


class Needs(Section):
    """The whole table."""

    sources: dict[str, str]
    fabrics: dict[str, Fabric]
    masks: tuple[Mask, ...]
    bindings: tuple[Binding, ...]
    allocators: tuple[Allocator, ...]
    libraries: tuple[Library, ...]
    variables: tuple[Variable, ...]
    versions: tuple[Version, ...]

    @model_validator(mode="after")
    def _names_are_known(self) -> Needs:
        rows: Iterable[Row | Library | Version] = (
            *self.masks, *self.bindings, *self.allocators, *self.libraries, *self.variables, *self.versions,
        )  # fmt: skip
        for row in rows:
            if wrong := set(row.sources) - self.sources.keys():
                raise ValueError(f"no such source: {', '.join(sorted(wrong))}")
            if (fabric := getattr(row, "fabric", "")) and fabric not in self.fabrics:
                raise ValueError(f"no such fabric: {fabric}")
        return self

    def fabric_of(self, machine: str, root: Path = Path("/")) -> str:
        """Return the network of a machine of envs/, else the one that this host shows; "" where there is none."""
        for name, fabric in self.fabrics.items():
            if machine in fabric.machines:
                return name
        return next((name for name, each in self.fabrics.items() if any(_shows(path, root) for path in each.paths)), "")

    def variables_of(self, vendor: str, fabric: str) -> list[Variable]:
        """Return the rows that concern a vendor's hosts on a network."""
        return [row for row in self.variables if vendor in row.vendors and row.fabric in ("", fabric)]


@cache
def read_needs(root: Path) -> Needs:
    """Return the table of the checkout ``root``.

    Raises:
        ConfigError: it cannot be read, or a row is wrong.
    """
    path = root / TABLE
    try:
        return Needs.model_validate(read_yaml(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; MEGADS_ROOT should be the checkout, or unset") from None
    except (yaml.YAMLError, ValidationError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error).splitlines()[0]
        raise ConfigError(f"{path}: {reason}") from None


def _shows(path: Path, root: Path) -> bool:
    return (root / path.relative_to("/")).exists()


def _numbers(version: str) -> tuple[int, ...]:
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


def table(needs: Needs) -> str:
    """Return the variables as the table of docs/gpu.md."""
    lines = ["| variable | vendors | network | value | level | why |", "|---|---|---|---|---|---|"]
    for row in needs.variables:
        right = " or ".join(f"`{value}`" for value in row.values) or (f"like `{row.example}`" if row.pattern else "")
        right = right or (f"{row.minimum} or more" if row.minimum else "")
        wrong = f"not {' or '.join(f'`{value}`' for value in row.harmful)}" if row.harmful else ""
        value = ", ".join(each for each in (right, wrong) if each)
        cells = (f"`{row.name}`", ", ".join(row.vendors), row.fabric or "any", value, row.level, row.why)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
