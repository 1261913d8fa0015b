"""The demo corpus: real text that every machine has, made once and kept in the cache.

It is the source of Python's own standard library, with a byte-level BPE trained on it::

    <cache_dir>/demo-<key>/corpus.bin, corpus.idx   one document per source file
                           tokenizer.json           of the tokenizers library
                           info.json                CRC-32 and size of the others, counts, where it came from

For BERT and T5 each line is a sentence, and a WordPiece vocabulary takes the place of the BPE::

                           vocab.txt                in place of tokenizer.json

``megads.data.stdlib_corpus`` makes it, in a process of its own: the tokenizers library starts
threads, and a process that has started them complains at every later fork.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from megads.config.schema import RunConfig
from megads.data.sources.file_list import Shard
from megads.errors import DataError
from megads.families.table import FAMILIES
from megads.storage.reading import read_bytes, read_json

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and the total."""

FORMAT = 1
"""Version of what is made; raise it when the same inputs give another corpus."""

FILES = ("corpus.bin", "corpus.idx", "tokenizer.json")
SENTENCE_FILES = ("corpus.bin", "corpus.idx", "vocab.txt")
CORPUS = "python-stdlib"
_MOST = 1 << 30  # bytes of a file
_LOG = logging.getLogger("megads")


def word_piece_type(run: RunConfig) -> str:
    """Return which WordPiece tokenizer a run's demo corpus of sentences is for; empty for one of whole documents."""
    return run.data.tokenizer_type if FAMILIES[run.model.family].reads_sentences else ""


def demo_prefix(run: RunConfig) -> Path:
    """Return the absolute prefix of the demo corpus, made or not.

    The folder's name holds a hash of all that decides the content: the Python it is taken
    from, the sizes asked for, and :data:`FORMAT`.
    """
    decides = [FORMAT, sys.version, sys.base_prefix, run.data.demo_vocab_size, run.data.demo_bytes]
    if kind := word_piece_type(run):
        decides.append(kind)
    key = hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:12]
    return Path(os.path.expanduser(run.data.cache_dir)).absolute() / f"demo-{key}" / "corpus"


def read_demo(run: RunConfig) -> list[Shard]:
    """Return the demo corpus that is in the cache.

    Raises:
        DataError: it is not there, or not complete.
    """
    prefix = demo_prefix(run)
    if not _is_complete(prefix.parent):
        raise DataError(f"{prefix.parent}: the demo corpus is missing or incomplete; `megads train` makes it")
    return [Shard(1.0, str(prefix), CORPUS)]


def make_demo(run: RunConfig, progress: Progress) -> list[Shard]:
    """Make the demo corpus unless the cache has it, and return it.

    It is made in a folder of its own and renamed, so several processes may do this at once
    and an interrupted one leaves nothing half made.

    Raises:
        DataError: there is no standard library source here, or the cache cannot be written.
    """
    folder = demo_prefix(run).parent
    if _is_complete(folder):
        return read_demo(run)
    temp = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temp, ignore_errors=True)
        temp.mkdir()
        _run_maker(temp, [str(run.data.demo_vocab_size), str(run.data.demo_bytes), word_piece_type(run)], progress)
        _publish(temp, folder)
    except OSError as error:
        raise DataError(
            f"demo corpus: {error.filename or folder}: {str(error.strerror).lower()}; set DATA_CACHE_PATH to a folder "
            "that can be written"
        ) from None
    finally:
        shutil.rmtree(temp, ignore_errors=True)
    return read_demo(run)


def crc_of(path: Path) -> str:
    """Return the CRC-32 of a file of the corpus, as ``info.json`` holds it; OSError and ValueError if it has none."""
    return f"{zlib.crc32(read_bytes(path, _MOST)):08x}"


def _is_complete(folder: Path) -> bool:
    """Return whether the corpus is there and what was written; a few MB are read."""
    try:
        crcs = read_json(folder / "info.json", _MOST)["crc32"]
        names = SENTENCE_FILES if SENTENCE_FILES[-1] in crcs else FILES
        if all(crc_of(folder / name) == crcs[name] for name in names):
            return True
        _LOG.warning("demo corpus %s: changed since it was written, its CRC-32 differs; rebuilding it", folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, KeyError, TypeError):
        _LOG.warning("demo corpus %s: is not complete, or of an older version; rebuilding it", folder)
    return False


def _publish(temp: Path, folder: Path) -> None:
    """Give the finished folder its name; if another process was faster, keep its result."""
    for _ in range(2):
        with contextlib.suppress(OSError):
            temp.rename(folder)
            return
        if _is_complete(folder):
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.unlink(missing_ok=True)
    temp.rename(folder)


def _run_maker(folder: Path, given: list[str], progress: Progress) -> None:
    """Run ``megads.data.stdlib_corpus`` and pass its progress on."""
    maker = subprocess.Popen(
        [sys.executable, "-m", "megads.data.stdlib_corpus", str(folder), *filter(None, given)],
        cwd=Path(__file__).parents[3],  # where `-m megads` finds this same package
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    failure = ""
    with maker, contextlib.ExitStack() as stack:
        stack.callback(maker.kill)
        for line in maker.stdout or ():
            kind, _, rest = line.rstrip("\n").partition("\t")
            if kind == "error":
                failure = rest
            elif kind == "progress":
                what, done, total = rest.split("\t")
                progress(what, int(done), int(total))
        stack.pop_all()  # it is not killed: it has closed its output
    if maker.returncode:
        how = f"failed with exit code {maker.returncode}; its messages are above"
        if maker.returncode < 0:
            how = f"was ended by signal {-maker.returncode}; if memory ran out, lower DEMO_BYTES"
        raise DataError(failure or f"making the demo corpus {how}")
