"""What is asked for, what comes out of it, and who reads which part of the input."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from megads.cluster.machine import count_cores
from megads.data.preprocess.input.files import Source
from megads.data.preprocess.input.sentences import SplitterName
from megads.data.tokenizers.base import TokenizerSpec
from megads.errors import ConfigError, DataError

FORMAT = 1
"""Raised when work that an older version left behind cannot be resumed."""


@dataclass(frozen=True)
class How:
    """What changes the time that a job takes, and nothing that comes out of it."""

    workers: int = 1
    partitions: int = 1
    chunk_size: int = 0  # documents encoded at once; 0: those of a block
    encoder: str = "auto"
    proofs: str = ""  # folder that keeps which libraries are exact; empty: none
    max_bad_lines: int = 0
    log_interval: int = 0  # documents between two lines of progress; 0: by time
    overwrite: bool = False
    block_bytes: int = 2 * 2**20  # text a worker takes at once
    commit_s: float = 1.0  # between two points from which a killed run resumes
    keep_s: float = 10.0  # work that took less is thrown away when an input is refused


class Work(Protocol):
    """What is made from JSON lines by workers of several ranks."""

    @property
    def inputs(self) -> tuple[Source, ...]:
        """The files, in order."""

    @property
    def how(self) -> How:
        """What changes the time and nothing else."""

    @property
    def target(self) -> str:
        """The name of what is made, for messages."""

    @property
    def option(self) -> str:
        """The option that gives it another name."""

    @property
    def work(self) -> Path:
        """The hidden folder next to the output that holds everything until it is complete."""

    @property
    def meeting(self) -> Path:
        """The folder in which the processes of a job find each other."""


@dataclass(frozen=True)
class Job:
    """One call of ``megads data preprocess``; all but the last line decide the bytes that come out."""

    inputs: tuple[Source, ...]
    output_prefix: str
    tokenizer: TokenizerSpec
    keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    split_sentences: bool = False
    splitter: SplitterName = "punkt"
    lang: str = "english"  # of the sentence splitter
    keep_newlines: bool = False  # line breaks between sentences stay with the one before
    impl: str = "mmap"
    verify: bool = False  # encode everything a second time, by the original
    how: How = How()

    @property
    def level(self) -> str:
        """What a sequence of the token files is."""
        return "sentence" if self.split_sentences else "document"

    def prefix(self, key: str) -> Path:
        """Return the path, without suffix, of the token files of ``key``."""
        return Path(f"{self.output_prefix}_{key}_{self.level}")

    @property
    def target(self) -> str:
        """The name of what is made, for messages."""
        return str(self.prefix(self.keys[0]))

    @property
    def option(self) -> str:
        """The option that gives it another name."""
        return "--output-prefix"

    @property
    def work(self) -> Path:
        """The hidden folder next to the output that holds everything until it is whole."""
        return work_folder(self.prefix("+".join(self.keys)), "preprocess")

    @property
    def meeting(self) -> Path:
        """The folder in which the processes of a job find each other."""
        return self.work.with_name(self.work.name + ".ranks")


@dataclass(frozen=True)
class Segment:
    """The lines of one input that begin at bytes ``start`` up to ``stop``; -1, for what is not plain: all."""

    source: int  # index into Job.inputs
    start: int
    stop: int


def work_folder(path: Path, suffix: str) -> Path:
    """Return the hidden folder next to ``path`` in which it is made."""
    name = f".{path.name}"
    if len(os.fsencode(name)) > 200:
        name = f"{name[:150]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return path.parent / f"{name}.{suffix}"


_PER_CORE, _PROCESSES = 8, 64  # processes of a job: for each core, and where there are few


def check_job(job: Job) -> None:
    """Raise ConfigError for options that contradict each other, names that no file can have, and too many processes."""
    if not Path(job.output_prefix).name or job.output_prefix.endswith(("/", "/.", "/..")):
        raise ConfigError(f"--output-prefix {job.output_prefix!r}: names a folder; pass the beginning of a file name")
    for key in job.keys:
        if not key or "/" in key or "\0" in key:
            raise ConfigError(f"--json-keys {key!r}: cannot be part of a file name; rename the key in the data")
    if len(set(job.keys)) < len(job.keys):
        raise ConfigError(f"--json-keys {' '.join(job.keys)}: names a key twice")
    check_processes(job.how)
    for option, is_given in (("--keep-newlines", job.keep_newlines), ("--sentence-splitter", job.splitter != "punkt")):
        if is_given and not job.split_sentences:
            raise ConfigError(f"{option} needs --split-sentences")


def check_processes(how: How) -> None:
    """Raise ConfigError for more processes than a host bears."""
    cores = count_cores()
    for option, given in (("--partitions", how.partitions), ("--workers", how.workers)):
        most = max(_PROCESSES, _PER_CORE * cores)
        if given > most:
            raise ConfigError(f"{option} {given}: at most {most} processes on this host, which has {cores} cores")


def digest_of(job: Job, fingerprint: str, parts: int) -> str:
    """Return a digest of what decides every byte of the parts of a job: work with another one is of no use to it."""
    key = {
        "format": FORMAT,
        "inputs": [[os.path.abspath(each.path), each.size, each.mtime_ns] for each in job.inputs],
        "keys": list(job.keys),
        "tokenizer": fingerprint,
        "options": [
            *(job.append_eod, job.split_sentences, job.splitter, job.lang, job.keep_newlines, job.impl, job.verify)
        ],
        "parts": parts,
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def split_inputs(inputs: tuple[Source, ...], parts: int) -> list[list[Segment]]:
    """Return what each of ``parts`` ranks reads: neighbouring stretches of about as many bytes on disk.

    Plain files are cut anywhere (a line belongs to whom its first byte belongs to), others are not:
    such a file is read by whom its first byte falls to. DataError where a pipe would be split.
    """
    if parts > 1 and any(source.kind == "pipe" for source in inputs):
        name = next(source.path for source in inputs if source.kind == "pipe")
        raise DataError(f"--input {name}: a pipe cannot be read by {parts} processes; use one, or files")
    total = sum(source.size for source in inputs)
    bounds = [total * part // parts for part in range(parts + 1)]
    result: list[list[Segment]] = [[] for _ in range(parts)]
    begin = 0
    for index, source in enumerate(inputs):
        end = begin + source.size
        for part, (low, high) in enumerate(itertools.pairwise(bounds)):
            is_last = part == parts - 1
            if not source.is_plain:
                if low <= begin < high or (is_last and begin == high):
                    result[part].append(Segment(index, 0, -1))
            elif max(low, begin) < min(high, end):
                result[part].append(Segment(index, max(low, begin) - begin, min(high, end) - begin))
        begin = end
    return result
