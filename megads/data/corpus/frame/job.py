"""One call of a corpus tool: what it reads, what it makes, and what is refused before anything is read."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from megads.data.corpus.frame.step import Step
from megads.data.preprocess.input.files import STDIN, Source
from megads.data.preprocess.plan import How, check_processes, split_inputs, work_folder
from megads.errors import ConfigError, DataError

FORMAT = 1
"""Raised when work that an older version left behind cannot be resumed."""
_PACKED = (".gz", ".xz", ".zst", ".bz2")


@dataclass(frozen=True)
class CorpusJob:
    """What is read, what is done with it, and where the result goes."""

    inputs: tuple[Source, ...]
    step: Step
    output: str
    dropped: str = ""  # file of the dropped documents, empty: none
    is_hidden: bool = False  # a pass of several: no report
    how: How = field(default_factory=How)

    @property
    def target(self) -> str:
        """The name of what is made, for messages."""
        return self.output

    @property
    def option(self) -> str:
        """The option that gives it another name."""
        return "--output"

    @property
    def report(self) -> str:
        """The file that says what was dropped, and why."""
        return f"{self.output}.report.json"

    @property
    def work(self) -> Path:
        """The hidden folder next to the output that holds everything until it is complete."""
        return work_folder(Path(self.output), "corpus")

    @property
    def meeting(self) -> Path:
        """The folder in which the processes of a job find each other."""
        return self.work.with_name(self.work.name + ".ranks")


def check_job(job: CorpusJob, size: int) -> None:
    """Raise MegadsError for an output that cannot be, one that is an input, and more processes than make sense."""
    outputs = {"--output": job.output, "--dropped": job.dropped}
    outputs.update(job.step.extra_outputs)
    for option, path in outputs.items():
        if path or option == "--output":
            check_output(option, path)
    inputs = {os.path.realpath(source.path): source.path for source in job.inputs if source.path != STDIN}
    for option, path in {**outputs, "the report": job.report}.items():
        if path and os.path.realpath(path) in inputs:
            raise DataError(f"{option} {path}: is an input as well; it would be overwritten; use another name")
    taken = {os.path.realpath(job.output), os.path.realpath(job.report)}
    for option, path in list(outputs.items())[1:]:
        if path and os.path.realpath(path) in taken:
            raise DataError(f"{option} {path}: is the name of another output or of the report; use another name")
        taken.add(os.path.realpath(path))
    if job.step.is_numbered and size > 1:
        raise ConfigError(f"{job.step.name} numbers documents in one process, not in {size} ranks; use --workers")
    split_inputs(job.inputs, size)  # where a pipe would be split
    check_processes(job.how)


def check_output(option: str, path: str) -> None:
    """Raise DataError for a name that no output can have."""
    if path == STDIN:
        raise DataError(f"{option} -: stdout cannot be resumed; pass a file name")
    if not Path(path).name or path.endswith(("/", "/.", "/..")) or os.path.isdir(path):
        raise DataError(f"{option} {path!r}: is a folder; pass a file name")
    if path.endswith(_PACKED):
        plain = path.rpartition(".")[0]
        raise DataError(f"{option} {path}: the output is plain text; use the name {plain}, and pack it afterwards")
    if os.path.lexists(path) and not stat.S_ISREG(os.stat(path).st_mode if os.path.exists(path) else 0):
        raise DataError(f"{option} {path}: exists and is not a regular file; use another name")


def digest_of(job: CorpusJob, parts: int) -> str:
    """Return a digest of what decides every byte of the parts of a job: work with another one is of no use to it."""
    key = {
        "format": FORMAT,
        "inputs": [[os.path.abspath(each.path), each.size, each.mtime_ns] for each in job.inputs],
        "step": job.step.name,
        "options": job.step.options(),
        "dropped": bool(job.dropped),
        "parts": parts,
    }
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
