"""The tables of docs/api.md and docs/migrating.md, from the code; ``docs.site.write`` writes them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from megads.config.sources.env_names import NO_EFFECT, OTHER_NAMES, REFUSED
from megads.release.api import PUBLIC
from megads.release.versions import FORMATS
from megads.text.markdown import cell

DOCS = Path(__file__).parents[1]
BEGIN, END = "<!-- python -m docs.site.write: {} -->", "<!-- end -->"
WIDTH = 110


def public_names() -> str:
    """Return the public names of every module, with signatures and what they do."""
    lines: list[str] = []
    for module, names in PUBLIC.items():
        members = [(name, getattr(importlib.import_module(module), name)) for name in names]
        lines += [f"### {module}", "", "| name | |", "|---|---|"]
        kinds = getattr(importlib.import_module(module), "__annotations__", {})
        lines += [f"| `{name}` | {_cell(_does(member, kinds.get(name, '')))} |" for name, member in members]
        stubs = [stub for name, member in members for stub in _stubs(name, member)]
        lines += ["", *(["```python", *stubs, "```", ""] if stubs else [])]
    return "\n".join(lines)


def formats() -> str:
    """Return the versions of the formats."""
    rows = [f"| {name} | {each} | {_cell(each.covers)} |" for name, each in FORMATS.items()]
    return "\n".join(["| format | version | covers |", "|---|---|---|", *rows, ""])


def other_variables() -> str:
    """Return the variables of other toolkits, by the setting that is meant."""
    meant: dict[str, list[str]] = {}
    for name, setting in OTHER_NAMES.items():
        meant.setdefault(setting, []).append(f"`{name}`")
    why: dict[str, list[str]] = {}
    for name, reason in NO_EFFECT.items():
        why.setdefault(reason, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | `{setting}` |" for setting, names in meant.items()]
    rows += [f"| {', '.join(names)} | {_cell(reason)} |" for reason, names in why.items()]
    rows += [f"| `{name}` | rejected: {_cell(what.partition('; ')[0])} |" for name, what in REFUSED.items()]
    return "\n".join(["| variable | here |", "|---|---|", *rows, ""])


TABLES = {"api.md": (formats, public_names), "migrating.md": (other_variables,)}


def page(name: str, written: str) -> str:
    """Return a page with new tables between its marks."""
    for make in TABLES[name]:
        mark = f"{BEGIN.format(make.__name__)}\n"
        before, found, rest = written.partition(mark)
        if not found or END not in rest:
            raise ValueError(f"{name} lacks {mark.strip()} or {END} behind it")
        written = f"{before}{mark}\n{make()}\n{END}{rest.partition(END)[2]}"
    return written


def _does(member: Any, kind: str) -> str:
    """Return the first sentence about a function or class, the type or the elements of a constant."""
    if callable(member):
        return (inspect.getdoc(member) or "").partition("\n")[0]
    return f"`{kind or (member if isinstance(member, tuple) else type(member).__name__)}`"


def _stubs(name: str, member: Any) -> Iterator[str]:
    """Yield the lines that say how a function is called, or what a class has."""
    if inspect.isfunction(inspect.unwrap(member)):
        yield from _call(f"def {name}", member, "")
    elif isinstance(member, type) and not issubclass(member, Exception) and not hasattr(member, "model_fields"):
        yield f"class {name}:"
        yield from _attributes(member)
        is_own = dataclasses.is_dataclass(member) or getattr(member, "_is_protocol", False)
        for key, each in vars(member).items():
            if inspect.isfunction(each) and (not key.startswith("_") or (key == "__init__" and not is_own)):
                yield from _call(f"    def {key}", each, "    ")


def _attributes(member: type) -> Iterator[str]:
    """Yield the fields of a class with their defaults, then its properties."""
    for each in dataclasses.fields(member) if dataclasses.is_dataclass(member) else ():
        if not each.name.startswith("_"):
            default = "" if each.default is dataclasses.MISSING else f" = {each.default!r}".replace("'", '"')
            yield f"    {each.name}: {each.type}{default}"
    for key, value in vars(member).items():
        get = getattr(value, "fget", None) or getattr(value, "func", None)  # a property, or one that is kept
        if get is not None and not key.startswith("_"):
            yield f"    {key}: {inspect.signature(get).return_annotation}"


def _call(head: str, function: Any, indent: str) -> Iterator[str]:
    """Yield a signature, an argument on each line where it is long."""
    text = re.sub(r"'", '"', str(inspect.signature(function)))
    # Annotations are texts, which inspect shows in quotes.
    text = re.sub(r'(: |-> )"([^"]*)"', r"\1\2", text)
    line = f"{head}{text}"
    if len(line) <= WIDTH:
        yield line
        return
    inner, _, returns = text[1:].removesuffix(")").partition(") -> ")
    yield f"{head}("
    yield from (f"{indent}    {each}," for each in _arguments(inner))
    yield f"{indent})" + (f" -> {returns}" if returns else "")


def _arguments(inner: str) -> list[str]:
    """Split arguments at commas outside of brackets."""
    found, depth = [""], 0
    for letter in inner:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def _cell(text: str) -> str:
    return cell(re.sub(r"(?::\w+:)?``?([^`]*)``?", r"`\1`", text))
