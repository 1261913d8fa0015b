"""What of the host a container sees besides the image: every folder that the run reads or writes, at its own path."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from megads.config.schema import RunConfig
from megads.config.tree import fields, value_of
from megads.errors import LaunchError

_OF_THE_IMAGE = tuple(map(Path, ("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr")))
"""Folders that stay the image's own."""


@dataclass(frozen=True)
class Bind:
    """A path of the host, and where the container sees it."""

    source: str
    target: str = ""  # empty: at the same path
    read_only: bool = False

    def words(self, *, both: bool, flag: str = "ro") -> str:
        """Return it as runtimes write it; ``both``: with the target where that is the same path."""
        target = self.target or self.source
        same = target == self.source and not both and not self.read_only
        return self.source if same else f"{self.source}:{target}{f':{flag}' if self.read_only else ''}"


def parse_binds(text: str, name: str = "CONTAINER_BINDS") -> tuple[Bind, ...]:
    """Return the binds of ``HOST[:INSIDE[:ro]],...``.

    Raises:
        LaunchError: a word is none.
    """
    found = []
    for word in re.split(r"[,\s]+", text.strip()):
        if not word:
            continue
        source, target, mode, *more = [*word.split(":"), "", ""][: max(3, word.count(":") + 1)]
        if target in ("ro", "rw") and not mode:
            target, mode = "", target
        right = source.startswith(("/", "~")) and target[:1] in ("", "/") and mode in ("", "ro", "rw")
        if not right or any(more):
            raise LaunchError(f"{name}: {word!r} is not HOST, HOST:INSIDE or HOST:INSIDE:ro with absolute paths")
        found.append(Bind(os.path.expanduser(source).rstrip("/") or "/", target.rstrip("/"), mode == "ro"))
    return tuple(found)


def binds_of_run(
    run: RunConfig, env: Mapping[str, str], cwd: Path, root: Path, more: Iterable[Path] = ()
) -> tuple[Bind, ...]:
    """Return the folders that ranks of ``run`` use: each once, those inside another one left out.

    These are the working folder, the checkout, the folders for temporary files and of the user, and what a setting
    or a line of a data list names.

    Args:
        root: of the checkout.
        more: further folders, e.g. the run folder.

    Raises:
        LaunchError: a path that no runtime can bind.
    """
    paths = [cwd, *more, Path(env.get("TMPDIR") or "/tmp")]
    if root.name not in ("site-packages", "dist-packages"):
        paths.append(root)
    if home := env.get("HOME", ""):
        paths.append(Path(home))
    paths += [cwd / word for word in _paths_in(_texts(run)) if ".." in word or os.path.isabs(word)]
    paths += [Path(prefix) for prefix in _prefixes(run)]
    folders = {folder for path in paths for folder in _seen_as(_nearest_folder(Path(os.path.abspath(path))))}
    kept: list[Path] = []
    for folder in sorted(folders - set(_OF_THE_IMAGE)):
        if not any(folder.is_relative_to(other) for other in kept):
            kept.append(folder)
    for folder in kept:
        if re.search(r"[:,\s]", str(folder)):
            raise LaunchError(
                f"CONTAINER: {str(folder)!r} has a colon, comma or blank and cannot be bound; use another folder"
            )
    return tuple(Bind(str(folder)) for folder in kept)


def _seen_as(folder: Path) -> Iterator[Path]:
    """Yield ``folder`` and, where links lead to it, the folder itself: programs may ask for either."""
    yield folder
    yield Path(os.path.realpath(folder))


def _nearest_folder(path: Path) -> Path:
    """Return the folder that holds ``path``, or is it; one that is made later is itself bound below a system folder."""
    if path.is_dir():
        return path
    above = next(parent for parent in path.parents if parent.is_dir())
    return path if above in _OF_THE_IMAGE and not path.exists() else above


def _texts(run: RunConfig) -> Iterator[str]:
    for name in fields():
        value = value_of(run, name)
        # Binds and options of the runtime are no paths of the run; an image is opened outside.
        if isinstance(value, str) and not name.startswith("launch.container"):
            yield value


def _paths_in(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for word in re.split(r"[\s,;]+", text):
            if "/" in word and "://" not in word and (word.startswith(("/", "~", "../")) or "/../" in word):
                yield os.path.expanduser(word)


def _prefixes(run: RunConfig) -> Iterator[str]:
    """Yield the prefix of every token file of ``run``; none of a program that is no run of megads."""
    if not (run.name or run.dir):
        return
    from megads.data.datasets import read_held_out, read_shards, uses_demo
    from megads.data.sources.demo import demo_prefix
    from megads.data.stages.shards import stages_with_files

    if uses_demo(run):
        yield str(demo_prefix(run))
    elif run.data.path or run.data.file_list:
        yield from (shard.prefix for shard in read_shards(run))
    for split in ("valid", "test"):
        if (own := run.data.held_out(split)).text:
            yield from (shard.prefix for shard in read_held_out(own))
    for _, _, shards in stages_with_files(run):
        yield from (shard.prefix for shard in shards)
