"""Which data files a run reads: a list with ``WEIGHT PREFIX [CORPUS]`` on each line, or the text of ``DATA_PATH``."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from megads.data.formats.prefix import strip_suffix
from megads.errors import DataError
from megads.storage.open_file import cannot_read, open_regular
from megads.text.quoting import split_words

_LINE = "'WEIGHT PREFIX CORPUS'"
_WHAT = f"pass a text file with {_LINE} on each line"
_LONGEST = 1 << 26  # bytes of a list; hundreds of thousands of lines
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """One pair of data files, ``<prefix>.bin`` and ``<prefix>.idx``."""

    weight: float  # share of the samples, relative to the other shards; not negative
    prefix: str  # path without suffix
    corpus: str  # shards of the same corpus are concatenated, corpora are blended; empty while a line is parsed


def read_file_list(path: Path, env: Mapping[str, str] | None = None, *, name: str = "DATA_FILE_LIST") -> list[Shard]:
    """Return the list's shards in order; their weights have a positive sum.

    Blank lines are skipped, and everything from a ``#`` on that begins a line or follows a blank. Words with
    blanks stand in quotes, see :func:`megads.text.quoting.split_words`.
    In the prefix, ``$NAME``, ``${NAME}`` and a leading ``~`` are replaced; a ``.bin`` or ``.idx``
    suffix is removed; a relative one starts at the folder of the list, wherever the run is started.
    Without a third column each prefix is a corpus of its own, called by its last part, or by as many
    of its last parts as it takes to tell it from the others.

    Args:
        path: of the list.
        env: values of variables; None: those of this process.
        name: of the setting that named the list, for messages; empty: none did.

    Raises:
        DataError: the list cannot be read, is empty, uses a variable that is not set, or has a
            line that is not understood.
    """
    lines = _read_text(path, name).splitlines()
    return _parse_lines(lines, path.absolute().parent, str(path), env, numbered=True)


def parse_lines(lines: Sequence[str], folder: Path, where: str) -> list[Shard]:
    """Return the shards of the lines of a list that stand elsewhere; ``where``: for messages.

    A relative prefix starts at ``folder``.

    Raises:
        DataError: as :func:`read_file_list`.
    """
    return _parse_lines(lines, folder, where, None, numbered=False)


def _parse_lines(
    lines: Sequence[str], folder: Path, where: str, env: Mapping[str, str] | None, *, numbered: bool
) -> list[Shard]:
    entries = []
    for number, line in enumerate(lines, start=1):
        at = f"{where}:{number}" if numbered else where
        if words := _split(line, at):
            entries.append(_parse(words, line.strip(), folder, at, env))
    if not entries:
        raise DataError(f"{where}: lists no data; write {_LINE} on each line")
    return _shards(entries, where)


def variables_of(paths: Sequence[str], lists: Sequence[Path], more: Sequence[str] = ()) -> set[str]:
    """Return the names of the variables in the texts of ``DATA_PATH`` and the like, in lists and ``more`` lines.

    Raises:
        DataError: a list cannot be read, or a quote in it does not end.
    """
    words = [word for text in (*paths, *more) for word in _split(text, "DATA_PATH")]
    for path in lists:
        for number, line in enumerate(_read_text(path, "").splitlines(), start=1):
            words += _split(line, f"{path}:{number}")
    return {match[1] or match[2] for word in words for match in _VARIABLE.finditer(word)}


def parse_data_path(text: str, env: Mapping[str, str] | None = None, name: str = "DATA_PATH") -> list[Shard]:
    """Return the shards that ``DATA_PATH`` (or the setting called ``name``) names; each prefix is a corpus of its own.

    As Megatron's ``--data-path``: one prefix; or ``WEIGHT PREFIX WEIGHT PREFIX ...``; or several prefixes,
    which then weigh as many tokens as they hold, so that every token is seen equally often. A relative
    prefix starts at the working directory; variables and suffixes are treated as in lists.

    Raises:
        DataError: the text names nothing, a weight is wrong, a variable is not set, or (for
            several prefixes) a file cannot be opened.
    """
    words, where = _split(text, name), name
    if not words:
        raise DataError(f"{where}: names no data; pass one prefix, or WEIGHT PREFIX WEIGHT PREFIX ...")
    folder = Path(os.path.abspath(os.curdir))
    if has_weights(text):
        pairs = zip(words[::2], words[1::2], strict=True)
        return _shards([_parse([*pair], " ".join(pair), folder, where, env) for pair in pairs], where)
    prefixes = [_prefix(word, folder, where, env) for word in words]
    if len(words) == 1:
        return _shards([Shard(1.0, prefixes[0], "")], where)
    stray = [word for word, prefix in zip(words, prefixes, strict=True) if _is_number(word) and not _exists(prefix)]
    if stray:
        raise DataError(f"{where}: {stray[0]} is a weight without a prefix; write WEIGHT PREFIX WEIGHT PREFIX ...")
    return _shards([Shard(_tokens(prefix), prefix, "") for prefix in prefixes], where)


def has_weights(text: str) -> bool:
    """Return whether ``DATA_PATH`` gives weights: ``WEIGHT PREFIX WEIGHT PREFIX ...``, also of a single prefix."""
    words = _split(text, "DATA_PATH")
    return bool(words) and len(words) % 2 == 0 and all(_is_number(word) for word in words[::2])


def repeated(shards: Sequence[Shard]) -> list[tuple[Shard, Shard]]:
    """Return each shard whose files an earlier one has already, with that one; links to the same file count."""
    seen: dict[object, Shard] = {}
    found = []
    for shard in shards:
        key: object = os.path.realpath(shard.prefix + ".bin")
        if _exists(shard.prefix):
            status = os.stat(shard.prefix + ".idx")
            key = (status.st_dev, status.st_ino)
        if key in seen:
            found.append((shard, seen[key]))
        seen.setdefault(key, shard)
    return found


def _read_text(path: Path, setting: str) -> str:
    name = f"{setting} {path}".lstrip()
    handle, size = open_regular(path, missing=lambda: _WHAT, expected=_WHAT, name=name)
    with os.fdopen(handle, "rb") as file:
        if size > _LONGEST:
            raise DataError(f"{name}: has {size / 2**20:.0f} MiB, too much for a list; {_WHAT}")
        try:
            return file.read(_LONGEST).decode("utf-8-sig")
        except OSError as error:
            raise cannot_read(name, error) from None
        except UnicodeDecodeError as error:
            raise DataError(f"{name}: not UTF-8 text (byte {error.start}); {_WHAT}") from None


def _split(line: str, where: str) -> list[str]:
    try:
        return split_words(line)
    except ValueError as error:
        raise DataError(f'{where}: {error}; write "PREFIX WITH BLANKS"') from None


def _parse(words: list[str], line: str, folder: Path, where: str, env: Mapping[str, str] | None) -> Shard:
    if not 2 <= len(words) <= 3:
        raise DataError(f"{where}: expected {_LINE}, got {line!r:.200}")
    if not _is_number(words[0]):
        raise DataError(f"{where}: expected {_LINE}, but {words[0]!r:.200} is not a number")
    weight = float(words[0])
    if not (math.isfinite(weight) and weight >= 0):
        raise DataError(f"{where}: weight {words[0]} must be a finite number, 0 or larger")
    return Shard(weight, _prefix(words[1], folder, where, env), words[2] if len(words) == 3 else "")


def _prefix(word: str, folder: Path, where: str, env: Mapping[str, str] | None) -> str:
    """Return the absolute prefix that ``word`` stands for."""
    if "\0" in word:
        raise DataError(f"{where}: {word!r:.200} holds a zero byte, which no name can; is this a text file?")

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = os.path.expandvars(f"${{{name}}}") if env is None else env.get(name, "")
        if not found or (env is None and found == f"${{{name}}}"):
            raise DataError(f"{where}: {word}: {name} is not set; export {name}=FOLDER, or write the path out")
        return found

    path = strip_suffix(_VARIABLE.sub(value, word))
    home = None if env is None else env.get("HOME")
    if path.startswith("~/") and home:
        path = home + path[1:]
    path = os.path.expanduser(path)
    if path.startswith("~"):
        raise DataError(f"{where}: {word}: no such user; write the path out")
    return str(folder / path)


def _shards(entries: Sequence[Shard], where: str) -> list[Shard]:
    total = sum(entry.weight for entry in entries)
    if total == 0:
        raise DataError(f"{where}: all weights are 0; at least one must be positive")
    if total == math.inf:
        raise DataError(f"{where}: the weights add up to more than a float holds; divide them by their largest")
    names = _names({entry.prefix for entry in entries if not entry.corpus})
    return [replace(entry, corpus=entry.corpus or names[entry.prefix]) for entry in entries]


def _names(prefixes: set[str]) -> dict[str, str]:
    """Return for each prefix the fewest of its last parts that no other one ends in."""
    parts = {prefix: Path(prefix).parts for prefix in prefixes}
    names, length = {}, 1
    while parts:
        tails = {prefix: "/".join(each[-length:]) for prefix, each in parts.items()}
        count = Counter(tails.values())
        for prefix, tail in tails.items():
            if count[tail] == 1 or length > len(parts[prefix]):
                names[prefix] = tail
                del parts[prefix]
        length += 1
    return names


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _exists(prefix: str) -> bool:
    return os.path.exists(prefix + ".idx")


def _tokens(prefix: str) -> float:
    from megads.data.formats.token_file import open_dataset  # numpy: not needed by those who only read a list

    return float(open_dataset(prefix).num_tokens)
