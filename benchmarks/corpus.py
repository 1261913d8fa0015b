"""Cleaning of a corpus: this program against the plain loop over ftfy and py3langid, on the same machine, in one run.

::

    python -m benchmarks.corpus                  # 200 MB, 5 runs of each in turns; some minutes
    python -m benchmarks.corpus --quick          # 20 MB, 1 run
    python -m benchmarks.corpus --input raw.jsonl

The corpus is made of Python's own sources and documents: documents of 5,000 characters, a quarter with curly quotes
and dashes, a tenth with accented letters, one in a hundred with damaged characters. The peer is the loop of
Megatron-LM's cleanup_dataset.py (json, ftfy.fix_text, the language of the text, json), in as many processes as there
are cores, on the first megabytes; with the language found by the same library, of the whole text and of the same
beginning as ours. What it keeps is compared with what this program keeps. Ours is the whole command, from the start of
Python to the file's name. Medians of the time on the clock; and, for a host that is not quiet, of processor time (MB
for each second of a processor, times the cores).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from megads.data.corpus.cleaning.language import PREFIX

ROOT = Path(__file__).resolve().parents[1]
CORES = len(os.sched_getaffinity(0))
_DOCUMENT = 5000  # characters


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", type=float, help="of the corpus; 200e6")
    parser.add_argument("--peer-bytes", type=float, help="of what the peer does; 10e6")
    parser.add_argument("--runs", type=int, help="of everything; 5")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--input", type=Path, help="JSON lines with the key text, instead of Python sources")
    parser.add_argument("--folder", type=Path, help="where to put everything; it is removed again")
    args = parser.parse_args()
    usual = (20e6, 2e6, 1) if args.quick else (200e6, 10e6, 5)
    size, peer_size, runs = args.bytes or usual[0], args.peer_bytes or usual[1], args.runs or usual[2]
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="megads-benchmark-") as name:
        folder = Path(name)
        corpus = args.input or make_corpus(folder / "corpus.jsonl", int(size))
        part = head(corpus, folder / "part.jsonl", int(peer_size))
        print(f"{CORES} cores; corpus {corpus.stat().st_size / 1e6:.0f} MB, peer {part.stat().st_size / 1e6:.0f} MB")
        measure(folder, corpus, part, runs)


def measure(folder: Path, corpus: Path, part: Path, runs: int) -> None:
    """Measure all in turns, print medians and ratios, and compare what is kept."""
    speeds: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}

    def note(name: str, path: Path, took: tuple[float, float]) -> None:
        speeds.setdefault(name, []).append(path.stat().st_size / took[0] / 1e6)
        processor.setdefault(name, []).append(path.stat().st_size / took[1] / 1e6 * CORES)

    peers: dict[str, Callable[[bytes], bytes | None]] = {
        f"loop, language of {PREFIX} characters": clean_beginning,
        "loop, language of the whole text": clean_whole,
    }
    kept: dict[str, list[bytes]] = {}
    for _ in range(runs):
        for name, clean in peers.items():
            took, kept[name] = loop(part, clean)
            note(name, part, took)
        note("megads corpus clean", corpus, ours(corpus, folder / "clean.jsonl"))
    ours(part, folder / "part-clean.jsonl")
    found = (folder / "part-clean.jsonl").read_bytes().splitlines()
    for title, found_speeds in (("clock", speeds), ("processor", processor)):
        median = {name: statistics.median(each) for name, each in found_speeds.items()}
        for name, each in found_speeds.items():
            ratio = median["megads corpus clean"] / median[name]
            spread = f"({min(each):.1f} to {max(each):.1f})"
            print(f"{title:10}{name:36}{median[name]:8.1f} MB/s {spread:18} ours is {ratio:.1f} times it")
    for name, lines in kept.items():
        same = [json.loads(line) for line in lines] == [json.loads(line) for line in found]
        print(f"kept documents are those of the {name}: {'yes' if same else different(lines, found)}")


def different(lines: list[bytes], found: list[bytes]) -> str:
    """Return how many documents only one of two has."""
    return f"no, {len({*lines} ^ {*found})} of {len(lines)} differ"


def ours(source: Path, target: Path) -> tuple[float, float]:
    """Return the seconds of our command, on the clock and of processors."""
    words = [sys.executable, "-m", "megads", "corpus", "clean", str(source), str(target), "--overwrite"]
    began, before = time.perf_counter(), children()
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - began, children() - before


def children() -> float:
    """Return the processor seconds of all children that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def loop(path: Path, clean: Callable[[bytes], bytes | None]) -> tuple[tuple[float, float], list[bytes]]:
    """Return the seconds of the plain loop in as many processes as cores, without their start, and what it keeps."""
    with multiprocessing.get_context("fork").Pool(CORES) as pool:
        warmed = sum(pool.map(warm, range(CORES), 1))
        before, began = children(), time.perf_counter()
        with path.open("rb") as lines:
            kept = [line for line in pool.imap(clean, lines, 50) if line is not None]
        took = time.perf_counter() - began
        pool.close()
        pool.join()
    return (took, children() - before - warmed), kept


def warm(_: int) -> float:
    """Load the libraries; return the processor seconds."""
    before = time.process_time()
    clean_beginning(b'{"text": "a few words"}')
    took = time.process_time() - before
    time.sleep(0.2)  # so that every process gets one of these
    return took


def clean_beginning(line: bytes) -> bytes | None:
    """Return the cleaned line, None where it is dropped; the language by the beginning."""
    return clean(line, PREFIX)


def clean_whole(line: bytes) -> bytes | None:
    """Return the cleaned line, None where it is dropped; the language by all of the text."""
    return clean(line, 2**30)


def clean(line: bytes, characters: int) -> bytes | None:
    """Do what cleanup_dataset.py does with a line."""
    import ftfy
    import py3langid

    content = json.loads(line)
    content["text"] = text = ftfy.fix_text(content["text"])
    first = next((place for place, letter in enumerate(text) if letter.isalpha()), 0)
    if py3langid.classify(text[first : first + characters])[0] != "en" or len(text) < 512:
        return None
    return json.dumps(content, ensure_ascii=False).encode()


def make_corpus(path: Path, size: int) -> Path:
    """Write about ``size`` bytes of JSON lines."""
    written, number = 0, 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            for text in texts():
                row: dict[str, Any] = {"url": f"http://example.org/{number}", "text": typeset(text, number)}
                written += file.write(json.dumps(row, ensure_ascii=False) + "\n")
                number += 1
                if written >= size:
                    break
    return path


def texts() -> Iterator[str]:
    """Yield documents from Python's own sources."""
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = source.read_text(errors="replace").replace("\ufffd", "")
        yield from (text[at : at + _DOCUMENT] for at in range(0, len(text), _DOCUMENT))


def typeset(text: str, number: int) -> str:
    """Return a text as the web has it."""
    if number % 4 == 1:
        text = text.replace("'", "\u2019").replace(' "', " \u201c").replace(" -- ", " \u2014 ")
    if number % 10 == 2:
        text = text.replace(" a ", " caf\u00e9 ").replace(" the ", " na\u00efve ")
    return text.replace("'", "\u00e2\u20ac\u2122") if number % 100 == 3 else text


def head(path: Path, target: Path, size: int) -> Path:
    """Copy whole lines of about the first ``size`` bytes."""
    with path.open("rb") as source, target.open("wb") as file:
        for line in source:
            if file.tell() >= size:
                break
            file.write(line)
    return target


if __name__ == "__main__":
    main()
