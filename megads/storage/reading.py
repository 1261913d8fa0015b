"""Read JSON and YAML that anybody may have written: regular files only, of a bounded size and a bounded depth.

Every file of these formats is read here. A file that waits (a pipe), never ends (a device), fills the memory,
or is nested so deeply that a parser overflows its stack is an ``OSError`` or ``ValueError`` that says so.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from megads.storage.open_file import open_file
from megads.text.units import size as size_text

MOST = 64 << 20
"""Bytes of a file, unless its reader knows better."""

SMALL = 1 << 20
"""Bytes of a file that holds a few lines about a run."""

DEEPEST = 64
"""Lists and mappings inside each other."""

_MOST_ALIASES = 16  # in YAML; nested ones multiply


class Bounds(ValueError):
    """A text that is nested too deeply, or not JSON or YAML."""


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python from looking for circles in millions of new objects that have none."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def read_bytes(path: str | Path, most: int = MOST) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it is missing, cannot be read, is not a regular file, or longer than ``most`` bytes.
    """
    handle, size = open_file(path)
    with os.fdopen(handle, "rb") as file:
        # Files of /proc have a size of 0.
        content = b"" if size > most else file.read(most + 1)
    if size > most or len(content) > most:
        raise OSError(errno.EFBIG, f"has more than {size_text(most)}")
    return content


def read_text(path: str | Path, most: int = MOST) -> str:
    """Return the content of a regular file that is UTF-8; errors as :func:`read_bytes`."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Bounds(f"byte {error.start} is not UTF-8") from None


def read_json(path: str | Path, most: int = MOST, **how: Any) -> Any:
    """Return what a JSON file holds; ``how`` as of :func:`parse_json`.

    Raises:
        OSError: as :func:`read_bytes`.
        Bounds: it is not JSON, or nested too deeply.
    """
    return parse_json(read_bytes(path, most), **how)


def parse_json(
    content: str | bytes,
    *,
    constant: Callable[[str], Any] | None = None,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return what a JSON text holds.

    Args:
        content: text, or bytes in one of the encodings of JSON.
        constant: called for NaN and infinities, which JSON does not have; None: they are numbers.
        pairs: makes a mapping from its pairs.

    Raises:
        Bounds: it is not JSON, or nested deeper than :data:`DEEPEST`.
    """
    try:
        found = json.loads(content, parse_constant=constant, object_pairs_hook=pairs)
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise Bounds(f"is not JSON (line {error.lineno}, column {error.colno}: {error.msg.lower()})") from None
    except UnicodeDecodeError as error:
        raise Bounds(f"is not JSON (byte {error.start} is not UTF-8)") from None
    except Bounds:
        raise
    except ValueError as error:  # a number of many thousand digits, or of a hook
        raise Bounds(f"is not JSON ({error!s:.80})") from None
    text = content if isinstance(content, str) else content.decode("latin-1")
    if text.count("[") + text.count("{") > DEEPEST:
        _check_depth(found)
    return found


def _check_depth(found: Any) -> None:
    level = [found]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for each in level:
            values = each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
            inner += [value for value in values if isinstance(value, (dict, list))]
        if not inner:
            return
        level = inner
    raise _too_deep()


def read_yaml(path: str | Path, most: int = MOST, loader: Any = None) -> Any:
    """Return what a YAML file of at most ``most`` bytes holds; ``loader`` None: the fastest safe one.

    Raises:
        OSError: as :func:`read_bytes`.
        Bounds: it is nested too deeply, or has more aliases than one needs.
        yaml.YAMLError: the syntax is wrong.
    """
    return parse_yaml(read_text(path, most), loader)


def parse_yaml(text: str, loader: Any = None) -> Any:
    """Return what a YAML text holds; arguments and errors as :func:`read_yaml`."""
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
    depth = aliases = 0
    # Events come one by one, whatever the depth; making objects of them takes a frame of C per level.
    with contextlib.suppress(yaml.YAMLError):  # the loader says it better
        for event in yaml.parse(text, Loader=fast):
            if isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
                depth += 1
            elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
                depth -= 1
            elif isinstance(event, yaml.AliasEvent):
                aliases += 1
            if depth > DEEPEST:
                raise _too_deep()
            if aliases > _MOST_ALIASES:
                raise Bounds(f"has more than {_MOST_ALIASES} aliases")
    try:
        return yaml.load(text, Loader=loader or fast)
    except RecursionError:
        raise _too_deep() from None
    except (ValueError, OverflowError) as error:  # of a date, or a number of many thousand digits
        raise Bounds(f"is not YAML ({error!s:.80})") from None


def _too_deep() -> Bounds:
    return Bounds(f"is nested deeper than {DEEPEST} levels")
