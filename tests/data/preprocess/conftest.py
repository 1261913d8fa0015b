"""Call the real command, in processes of its own, on corpora of a few kilobytes."""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.preprocess.zygote import Call, Zygote

EOD = "<|endoftext|>"
OUT = ("--output-prefix", "out")
GOOD = b'{"text": "a good line"}\n'
# Blocks and points so small that every kill finds the run somewhere else.
FINE = ("--workers", 2, "--block-bytes", 2000, "--commit-seconds", 0)
WORDS = ["the", "quick", "fox", "Gr\u00fc\u00dfe", "\u4e16\u754c", "\U0001f642", "", "def f(x):\n", "  return x\n"]


@dataclass
class Done:
    """How a call ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that told the user what is wrong."""
        lines = [line for line in self.err.splitlines() if not line.startswith("megads: encoder:")]
        assert len(lines) == 1, self.err
        return lines[0]


@dataclass
class Megads:
    """Calls ``megads data preprocess`` in ``folder``."""

    folder: Path
    zygote: Zygote
    count: int = 0

    def start(self, *words: object, command: Sequence[str] = ("data", "preprocess"), **options: Any) -> int:
        if "--tokenizer-model" in words and "--encoder" not in words:
            words = (*words, "--encoder", "tokenizers")  # needs no proof, which takes a second
        self.count += 1
        streams = str(self.folder.parent / f"{self.folder.name}-streams-{self.count}")
        for suffix in (".out", ".err"):
            Path(streams + suffix).touch()
        return self.zygote.start(Call([*command, *map(str, words)], str(self.folder), streams=streams, **options))

    def wait(self, pid: int, number: int = 0) -> Done:
        code = self.zygote.wait(pid)
        streams = self.folder.parent / f"{self.folder.name}-streams-{number or self.count}"
        return Done(code, Path(f"{streams}.out").read_text(), Path(f"{streams}.err").read_text())

    def __call__(self, *words: object, **options: Any) -> Done:
        return self.wait(self.start(*words, **options))

    def made(self, *words: object, **options: Any) -> Done:
        done = self(*words, **options)
        assert done.code == 0, done.err
        return done

    def files(self) -> dict[str, bytes]:
        """Everything below the folder but the input."""
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return {path.name: path.read_bytes() for path in paths if path.suffix in (".bin", ".idx")}

    def hidden(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if path.name.startswith("."))


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    found = Zygote()
    yield found
    found.close()


@pytest.fixture
def megads(tmp_path: Path, zygote: Zygote) -> Megads:
    folder = tmp_path / "here"
    folder.mkdir()
    return Megads(folder, zygote)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 400 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[EOD], initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(texts(200), trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    inner.save(str(path))
    return path


def texts(count: int, seed: int = 0) -> list[str]:
    """Return texts of some words, some of them empty."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.choice((0, 1, 3, 20, 60)))) for _ in range(count)]


def write_jsonl(path: Path, values: Sequence[Any], key: str = "text") -> Path:
    """Write an object a line, with another key next to ``key``."""
    lines = [
        json.dumps({"id": number, key: value}, ensure_ascii=number % 2 == 0) for number, value in enumerate(values)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def golden(
    tokenizer: Path, values: Sequence[Any], *, eod: bool, impl: str = "mmap"
) -> tuple[bytes, list[int], list[int]]:
    """Return what Megatron makes of the documents: tokens, lengths, document index; written to be read, not fast."""
    from tokenizers import Tokenizer

    inner = Tokenizer.from_file(str(tokenizer))
    tokens: list[int] = []
    lengths: list[int] = []
    documents = [0]
    for value in values:
        sequences = [
            inner.encode(each, add_special_tokens=False).ids for each in (value if isinstance(value, list) else [value])
        ]
        sequences = [ids for ids in sequences if ids]
        if sequences and eod:
            sequences[-1].append(inner.token_to_id(EOD))
        for ids in sequences:
            tokens += ids
            lengths.append(len(ids))
        documents.append(len(lengths))
    return np.array(tokens, "<u2" if impl == "mmap" else "<i4").tobytes(), lengths, documents


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a call that was not waited for."""
    os.kill(pid, number)


@pytest.fixture
def values():
    return texts(300)


def refused(megads, tokenizer: Path, *words: object, told: str, **options: object) -> None:
    """Check that the call ends with 2 and one line, and leaves the folder as it was."""
    before = tree(megads.folder)
    done = megads("--tokenizer-model", tokenizer, "--output-prefix", "out", *words, **options)
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.error.startswith(f"megads: {told}"), done.err
    assert tree(megads.folder) == before


def tree(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*")}


def index(lengths: list[int], documents: list[int], itemsize: int, code: int) -> bytes:
    """Return an .idx file, as megatron.md 2.1."""
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(documents))
    starts = [0, *np.cumsum(lengths, dtype="<i8").tolist()][: len(lengths)]
    offsets = np.array(starts, "<i8") * itemsize
    return head + np.array(lengths, "<i4").tobytes() + offsets.tobytes() + np.array(documents, "<i8").tobytes()


@pytest.fixture
def words(megads, tokenizer):
    write_jsonl(megads.folder / "a.jsonl", texts(1500))
    return ["--input", "a.jsonl", "--output-prefix", "out", "--tokenizer-model", tokenizer, "--append-eod", *FINE]


def stopped(megads, *words: object) -> None:
    """Stop a call in the middle."""
    pid = megads.start(*words, "--verify", "--encoder", "original")
    work = megads.folder / ".out_text_document.preprocess" / "part-0" / "journal"
    until(lambda: work.exists() and work.read_bytes().count(b"\n") > 2)
    kill(pid)
    assert megads.wait(pid).code == -signal.SIGKILL


def until(condition) -> None:
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
