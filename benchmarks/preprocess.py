"""From JSON lines to token files: this program against the ways it is usually done, on the same machine, in one run.

::

    python -m benchmarks.preprocess                  # a GB of Python sources, 3 runs each; some minutes
    python -m benchmarks.preprocess --quick          # 60 MB, 1 run
    python -m benchmarks.preprocess --input corpus.jsonl --tokenizer tokenizer.json

Peers, on the first megabytes of the same corpus, without their start; what they write is compared
with ours byte by byte:

* pool: Megatron's loop. As many workers as cores, each parses a line with json, calls the Hugging Face
  tokenizer (sentencepiece for SentencePiece) for one document and sends the ids; one process writes them.
* batch: tokenizers.encode_batch, 1000 documents at once, with all its threads.

Ours is the whole command, from the start of Python to the file's name, and next to it the speed once it
runs. The ceiling is what cannot be skipped: reading and parsing the JSON (by one process, and by as
many as there are cores) and writing the tokens to the disk; for each of them everything else is free.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
EOD = "<|endoftext|>"
GPT_SP = ["--tokenizer-type", "GPTSentencePieceTokenizer"]
CORES = len(os.sched_getaffinity(0))
PIECE = 8 * 2**20


@dataclass(frozen=True)
class Kind:
    """A kind of tokenizer to measure."""

    name: str
    words: list[str]  # options of our command
    load: Callable[[], Callable[[str], list[int]]]  # in a worker of the pool
    eod: int | None
    goal: int  # at least so many times the pool
    batch: str = ""  # tokenizer.json for the batch peer


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", type=float, help="of the corpus; 1e9")
    parser.add_argument("--peer-bytes", type=float, help="of what the peers do; 16e6")
    parser.add_argument("--runs", type=int, help="of everything; 3")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--input", type=Path, help="JSON lines with the key text, instead of Python sources")
    parser.add_argument("--tokenizer", type=Path, help="byte-level BPE, instead of one trained here")
    parser.add_argument("--folder", type=Path, help="where to put everything; it is removed again")
    args = parser.parse_args()
    usual = (60e6, 4e6, 1) if args.quick else (1e9, 16e6, 3)
    args.bytes, args.peer_bytes, args.runs = args.bytes or usual[0], args.peer_bytes or usual[1], args.runs or usual[2]
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="megads-benchmark-") as name:
        folder = Path(name)
        corpus = args.input or make_corpus(folder / "corpus.jsonl", int(args.bytes))
        part = head(corpus, folder / "part.jsonl", int(args.peer_bytes))
        print(f"{CORES} cores; corpus {corpus.stat().st_size / 1e6:.0f} MB, peers {part.stat().st_size / 1e6:.0f} MB")
        kinds = make_kinds(folder, part, args.tokenizer)
        measure_bpe(kinds[0], corpus, part, folder, args.runs)
        longer = head(corpus, folder / "longer.jsonl", 8 * int(args.peer_bytes))
        for kind in kinds[1:]:
            measure_other(kind, longer, part, folder, args.runs)


def measure_bpe(kind: Kind, corpus: Path, part: Path, folder: Path, runs: int) -> None:
    """Everything for byte-level BPE: peers, ceiling, memory."""
    ours, steady, peak, cpu = repeat(lambda: command(kind, corpus, folder / "ours"), runs)
    pool, batch = compare(kind, part, folder, runs)
    print(f"\n{kind.name}, by {encoders[kind.name]}")
    show("whole command", ours)
    show("once it runs", steady)
    show("pool of workers, document by document", pool, steady.middle / pool.middle, goal=kind.goal)
    show("encode_batch, all threads", batch, steady.middle / batch.middle, goal=20)
    print(f"    whole command: {ours.middle / pool.middle:.0f} x the pool, {ours.middle / batch.middle:.0f} x batch")
    size = corpus.stat().st_size
    tokens = Path(f"{folder}/ours_text_document.bin").stat().st_size
    one = repeat(lambda: (size / seconds(lambda: parse(corpus, 0, 1)) / 1e6,), runs)[0]
    all_cores = repeat(lambda: (size / seconds(lambda: parse_by(corpus, CORES)) / 1e6,), runs)[0]
    disk = repeat(lambda: (size / seconds(lambda: write(folder / "zeros", tokens)) / 1e6,), runs)[0]
    show("ceiling: read and parse, one process", one, share=steady.middle / one.middle)
    show(f"ceiling: read and parse, {CORES} processes", all_cores, share=steady.middle / all_cores.middle)
    show("ceiling: write the tokens", disk, share=steady.middle / disk.middle)
    slowest = min(one.middle, disk.middle)
    print(
        f"    of the slowest stage: {steady.middle / slowest:.0%} (goal 50%), whole command {ours.middle / slowest:.0%}"
    )
    _, _, small, start = command(kind, part, folder / "small")
    parsing = cpu_seconds(lambda: parse(corpus, 0, 1))
    rate = (cpu.middle - start) / (size - part.stat().st_size) * 1e9
    alone = f"read and parse alone {parsing / size * 1e9:.2f} ns"
    print(f"    CPU per byte, whatever else this machine does: {rate:.2f} ns, {alone}")
    sizes = f"{part.stat().st_size / 1e6:.0f} MB, {peak.middle:.0f} MB for {size / 1e6:.0f} MB"
    print(f"    memory of the largest process: {small:.0f} MB for {sizes}")


def measure_other(kind: Kind, corpus: Path, part: Path, folder: Path, runs: int) -> None:
    """Our command against the pool."""
    ours, steady, *_ = repeat(lambda: command(kind, corpus, folder / "other"), runs)
    pool, _ = compare(kind, part, folder, runs)
    print(f"\n{kind.name}, by {encoders[kind.name]}")
    show("whole command", ours)
    show("once it runs", steady)
    show("pool of workers, document by document", pool, steady.middle / pool.middle, goal=kind.goal)


def compare(kind: Kind, part: Path, folder: Path, runs: int) -> tuple[Speed, Speed]:
    """Time the peers, and check that everybody writes the same tokens."""
    command(kind, part, folder / "check")
    expected = Path(f"{folder}/check_text_document.bin").read_bytes()
    dtype = np.dtype("<u2")
    size = part.stat().st_size
    pool = repeat(lambda: (size / pool_peer(kind, part, folder / "peer", dtype) / 1e6,), runs)[0]
    if (folder / "peer").read_bytes() != expected:
        raise SystemExit(f"{kind.name}: the pool writes other tokens than we do")
    if not kind.batch:
        return pool, pool
    batch = repeat(lambda: (size / batch_peer(kind, part, folder / "peer", dtype) / 1e6,), runs)[0]
    if (folder / "peer").read_bytes() != expected:
        raise SystemExit(f"{kind.name}: encode_batch writes other tokens than we do")
    print(f"\n{kind.name}: all outputs are equal, {len(expected)} bytes")
    return pool, batch


def command(kind: Kind, corpus: Path, prefix: Path) -> tuple[float, float, float, float]:
    """Run our command.

    Returns:
        MB/s of the whole, MB/s once it runs, MB of memory of its largest process, seconds of CPU of all.
    """
    words = ["--input", str(corpus), "--output-prefix", str(prefix), *kind.words, "--overwrite"]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "megads", "data", "preprocess", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    told = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    found = re.search(r"([\d.,]+) MB/s$", told.strip())
    if process.returncode or not found:
        raise SystemExit(told)
    encoders[kind.name] = told.partition("encoder: ")[2].partition(",")[0]
    steady = float(found[1].replace(",", ""))
    cpu = usage.ru_utime + usage.ru_stime
    return corpus.stat().st_size / took / 1e6, steady, usage.ru_maxrss / 1024, cpu


encoders: dict[str, str] = {}
"""What each kind of tokenizer is encoded with."""

_encode: Callable[[str], list[int]]
_eod: int | None


def _begin(load: Callable[[], Callable[[str], list[int]]], eod: int | None) -> None:
    global _encode, _eod
    _encode, _eod = load(), eod


def _line(line: str) -> list[int]:
    ids = _encode(json.loads(line)["text"])
    if ids and _eod is not None:
        ids = [*ids, _eod]
    return ids


def pool_peer(kind: Kind, part: Path, output: Path, dtype: np.dtype[Any]) -> float:
    """Do it as Megatron does; return seconds, without the start of the workers."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(CORES, _begin, (kind.load, kind.eod)) as pool:
        pool.map(_line, ['{"text": "start"}'] * CORES * 4, 1)
        began = time.perf_counter()
        with part.open(encoding="utf-8") as lines, output.open("wb") as file:
            for ids in pool.imap(_line, lines, 32):
                file.write(np.array(ids, dtype=dtype).tobytes(order="C"))
        return time.perf_counter() - began


def batch_peer(kind: Kind, part: Path, output: Path, dtype: np.dtype[Any]) -> float:
    """Do it with all threads of the tokenizers library, in a process of its own; return seconds."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_batch, (kind.batch, kind.eod, str(part), str(output), dtype.str))


def _batch(path: str, eod: int, part: str, output: str, dtype: str) -> float:
    import orjson
    from tokenizers import Tokenizer

    inner = Tokenizer.from_file(path)
    inner.encode_batch(["start"] * 8)
    began = time.perf_counter()
    with open(part, "rb") as lines, open(output, "wb") as file:
        while texts := [orjson.loads(line)["text"] for _, line in zip(range(1000), lines, strict=False)]:
            for encoding in inner.encode_batch(texts):
                ids = encoding.ids
                file.write(np.array([*ids, eod] if ids else ids, dtype=dtype).tobytes())
    return time.perf_counter() - began


def parse(path: Path, first: int, step: int) -> None:
    """Read and parse every ``step``-th piece of a file."""
    import orjson

    from megads.data.preprocess.input.ranges import RangeReader

    reader, size = RangeReader(), path.stat().st_size
    for start in range(first * PIECE, size, step * PIECE):
        for line in reader.read(str(path), start, min(start + PIECE, size)).splitlines():
            orjson.loads(line)
    reader.close()


def parse_by(path: Path, processes: int) -> None:
    """Read and parse a file in several processes; forked, so that their start is free."""
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=parse, args=(path, number, processes)) for number in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()


def write(path: Path, size: int) -> None:
    """Write ``size`` bytes that reach the disk."""
    piece = os.urandom(PIECE)
    with path.open("wb", buffering=0) as file:
        for start in range(0, size, PIECE):
            file.write(piece[: size - start])
        os.fsync(file.fileno())
    path.unlink()


@dataclass(frozen=True)
class Speed:
    """What several runs gave."""

    values: tuple[float, ...]

    @property
    def middle(self) -> float:
        return statistics.median(self.values)


def repeat(run: Callable[[], tuple[float, ...]], runs: int) -> list[Speed]:
    """Return each of the numbers that ``run`` gives, over all runs."""
    return [Speed(values) for values in zip(*(run() for _ in range(runs)), strict=True)]


def seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def cpu_seconds(run: Callable[[], None]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


def show(what: str, speed: Speed, ratio: float = 0, *, goal: int = 0, share: float = 0) -> None:
    spread = f"({min(speed.values):.1f} .. {max(speed.values):.1f})"
    more = f"  ours is {ratio:.0f} x (goal {goal} x)" if ratio else f"  ours is {share:.0%} of it" if share else ""
    print(f"    {what:40} {speed.middle:8.1f} MB/s {spread:>20}{more}")


def sources() -> Iterator[str]:
    """Yield the Python sources of this installation, in a fixed random order."""
    import random

    paths = sysconfig.get_paths()
    found = [path for root in (paths["stdlib"], paths["purelib"]) for path in sorted(Path(root).rglob("*.py"))]
    random.Random(1).shuffle(found)
    for path in found:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if text.strip():
            yield text


def make_corpus(path: Path, size: int) -> Path:
    """Write JSON lines of ``size`` bytes, the sources again and again if they are fewer."""
    import orjson

    with path.open("wb") as file:
        while file.tell() < size:
            for text in sources():
                file.write(orjson.dumps({"text": text}) + b"\n")
                if file.tell() >= size:
                    break
    return path


def head(corpus: Path, path: Path, size: int) -> Path:
    """Copy the first lines."""
    with corpus.open("rb") as lines, path.open("wb") as file:
        for line in lines:
            file.write(line)
            if file.tell() >= size:
                break
    return path


@dataclass(frozen=True)
class Load:
    """Makes a function from text to ids, in another process."""

    kind: str
    path: str

    def __call__(self) -> Callable[[str], list[int]]:
        if self.kind == "sentencepiece":
            import sentencepiece

            return sentencepiece.SentencePieceProcessor(model_file=self.path).encode
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        import tokenizers

        inner = tokenizers.Tokenizer.from_file(self.path)
        return lambda text: inner.encode(text).ids


def make_kinds(folder: Path, part: Path, tokenizer: Path | None) -> list[Kind]:
    """Train a tokenizer of each kind on the first megabytes."""
    from tokenizers import BertWordPieceTokenizer

    from megads.data.stdlib_corpus import train_bpe

    texts = [json.loads(line)["text"] for line in part.open(encoding="utf-8")]
    text = folder / "text.txt"
    text.write_text("".join(texts)[:4_000_000], encoding="utf-8")
    bpe = tokenizer or folder / "tokenizer.json"
    if tokenizer is None:
        train_bpe(texts, 32_000).save(str(bpe))
    words = BertWordPieceTokenizer(lowercase=True)
    words.train([str(text)], vocab_size=16_000, show_progress=False)
    words.save(str(folder / "words.json"))
    import sentencepiece

    # As Llama's: text as it is, bytes for what is unknown.
    as_llama = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "sp"), vocab_size=8000, model_type="bpe", minloglevel=2, **as_llama
    )
    from tokenizers import Tokenizer

    eod = Tokenizer.from_file(str(bpe)).token_to_id(EOD)
    vocab, model = folder / "words.json", folder / "sp.model"
    return [
        Kind("byte-level BPE", [*model_of(bpe), "--append-eod"], Load("tokenizers", str(bpe)), eod, 50, str(bpe)),
        Kind("WordPiece", model_of(vocab), Load("tokenizers", str(vocab)), None, 3),
        Kind("SentencePiece BPE, as Llama's", [*GPT_SP, *model_of(model)], Load("sentencepiece", str(model)), None, 3),
    ]


def model_of(path: Path) -> list[str]:
    return ["--tokenizer-model", str(path)]


if __name__ == "__main__":
    main()
