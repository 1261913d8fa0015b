"""Make the demo corpus of Python's own library: ``python -m megads.data.stdlib_corpus FOLDER VOCAB BYTES [TYPE]``.

TYPE is that of a WordPiece tokenizer, for a corpus of sentences; else documents are whole, with a byte-level BPE.

Run by ``megads.data.sources.demo``, which reads one line per step from its output:
``progress<TAB>what<TAB>done<TAB>total``, or ``error<TAB>message`` before it leaves with 2.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import random
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from megads.cluster.parent import end_with
from megads.data.formats.dtypes import best_dtype
from megads.data.formats.writer import IndexedWriter
from megads.data.sources.demo import FILES, FORMAT, SENTENCE_FILES, crc_of
from megads.data.tokenizers.train import EOD, train_bpe, train_word_piece, vocab_text
from megads.errors import DataError, MegadsError
from megads.storage.open_file import write_cure

_SKIPPED = {"site-packages", "dist-packages", "__pycache__", "lib2to3", "idlelib"}
_TESTS = {"test", "tests", "idle_test"}
_SEED = 1234
_TRAINED_BYTES = 4_000_000  # enough for a vocabulary of a few thousand; more only takes longer
_BATCH = 64  # documents encoded at once
_THREADS = 2

Progress = Callable[[str, int, int], None]


def choose_sources(root: Path, most_bytes: int) -> list[Path]:
    """Return the ``.py`` files below ``root`` to use, at most ``most_bytes`` together, in random order.

    Tests are used only when the whole library fits. The order is shuffled with a fixed seed, twice:
    before the limit cuts, so that it does not cut the alphabet's end off, and after it, because
    a split takes the last documents for validation, and these must be like the others.
    """
    rng = random.Random(_SEED)
    found = sorted(path.relative_to(root) for path in root.rglob("*.py"))
    files = [path for path in found if not _SKIPPED & set(path.parts)]
    rng.shuffle(files)
    tests = [path for path in files if _TESTS & set(path.parts)]
    library = [path for path in files if not _TESTS & set(path.parts)]
    chosen: list[Path] = []
    left = most_bytes
    for group in (library, tests):
        sizes = {root / path: (root / path).stat().st_size for path in group}
        fitting = []
        for path, size in sizes.items():
            if 0 < size <= left:
                fitting.append(path)
                left -= size
        chosen += fitting
        if len(fitting) < sum(size > 0 for size in sizes.values()):
            break
    rng.shuffle(chosen)
    return chosen


def read_texts(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the text of each file; the few that are not UTF-8 are skipped."""
    for path in paths:
        try:
            yield path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue


def make(folder: Path, vocab_size: int, most_bytes: int, progress: Progress, word_piece: str = "") -> None:
    """Write tokenizer, token files and ``info.json`` into ``folder``; of sentences for a type of ``word_piece``.

    Raises:
        DataError: no source is found, or the files cannot be written.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    progress("reading Python's library", 0, 1)
    texts = list(read_texts(choose_sources(root, most_bytes)))
    if len(texts) < 2:
        raise DataError(
            f"demo corpus: {root} has no two Python source files within DEMO_BYTES={most_bytes}; "
            "raise DEMO_BYTES, or set DATA_FILE_LIST to data of your own"
        )
    progress("reading Python's library", 1, 1)
    sizes = itertools.accumulate(len(text) for text in texts)
    part = [text for text, size in zip(texts, sizes, strict=True) if size <= _TRAINED_BYTES] or texts[:1]
    progress("training its tokenizer", 0, 1)
    if word_piece:
        tokenizer = train_word_piece(part, vocab_size, lower_case=word_piece == "BertWordPieceLowerCase")
        (folder / "vocab.txt").write_text(vocab_text(tokenizer), encoding="utf-8")
    else:
        tokenizer = train_bpe(part, vocab_size)
        (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    progress("training its tokenizer", 1, 1)
    write, names = (write_lines, SENTENCE_FILES) if word_piece else (write_tokens, FILES)
    tokens = write(folder / "corpus", tokenizer, texts, vocab_size, progress)
    info = {
        "format": FORMAT,
        "files": {name: (folder / name).stat().st_size for name in names},
        "crc32": {name: crc_of(folder / name) for name in names},
        "documents": len(texts),
        "tokens": tokens,
        "characters": sum(map(len, texts)),
        "vocab_size": vocab_size,
        "source": str(root),
        "python": platform.python_version(),
    }
    (folder / "info.json").write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")


def write_tokens(prefix: Path, tokenizer: Any, texts: list[str], vocab_size: int, progress: Progress) -> int:
    """Write one document per text, each with :data:`EOD` at its end, and return the number of tokens."""
    eod = tokenizer.token_to_id(EOD)
    count = 0
    with IndexedWriter(prefix, best_dtype(vocab_size)) as writer:
        for first in range(0, len(texts), _BATCH):
            progress("tokenizing it", first, len(texts))
            for encoding in tokenizer.encode_batch(texts[first : first + _BATCH], add_special_tokens=False):
                ids = [*encoding.ids, eod]
                writer.add_document(ids)
                count += len(ids)
        writer.finalize()
    progress("tokenizing it", len(texts), len(texts))
    return count


def write_lines(prefix: Path, tokenizer: Any, texts: list[str], vocab_size: int, progress: Progress) -> int:
    """Write one document per text, each of its lines a sequence, and return the number of tokens."""
    count = 0
    with IndexedWriter(prefix, best_dtype(vocab_size)) as writer:
        for number, text in enumerate(texts):
            if number % _BATCH == 0:
                progress("tokenizing it", number, len(texts))
            encoded = tokenizer.encode_batch(text.splitlines(), add_special_tokens=False)
            lines = [each.ids for each in encoded if each.ids]
            lengths = np.array([len(line) for line in lines], np.int32)
            writer.add_batch(np.array([*itertools.chain(*lines)]), lengths, np.array([len(lines)], np.int64))
            count += int(lengths.sum())
        writer.finalize()
    progress("tokenizing it", len(texts), len(texts))
    return count


def _report(*fields: object) -> None:
    sys.stdout.write("\t".join(map(str, fields)) + "\n")
    sys.stdout.flush()


def main(folder: str, vocab_size: str, most_bytes: str, word_piece: str = "") -> int:
    """Make the corpus and return the exit code."""
    end_with(os.getppid())
    # Read by the tokenizers library. Only this process is meant, which never forks.
    os.putenv("TOKENIZERS_PARALLELISM", "true")
    os.putenv("RAYON_NUM_THREADS", str(_THREADS))
    try:
        make(Path(folder), int(vocab_size), int(most_bytes), lambda *step: _report("progress", *step), word_piece)
    except MegadsError as error:
        _report("error", error)
    except BrokenPipeError:
        return 1  # nobody is waiting for the corpus any more
    except OSError as error:
        reason = str(error.strerror).lower()
        cure = write_cure(error, "set DATA_CACHE_PATH to another folder")
        _report("error", f"demo corpus: {error.filename or folder}: {reason}; {cure}")
    else:
        return 0
    return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
