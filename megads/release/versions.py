"""The version of megads and of every format that outlives a process; ``docs/releases.md`` has the rules."""

from __future__ import annotations

from dataclasses import dataclass

from megads import __version__ as VERSION

__all__ = ["FORMATS", "VERSION", "Format", "summary"]


@dataclass(frozen=True)
class Format:
    """A format that others read or write: files, or words of a command line.

    Attributes:
        version: ``MAJOR.MINOR``. A program of an older major number cannot use it; one of an older minor number skips
            what is new.
        covers: what it is made of.
        reads: major numbers that this version of megads understands; what is written has one of them.
    """

    version: str
    covers: str
    reads: tuple[int, ...] = (1,)

    @property
    def major(self) -> int:
        """The number that changes when older programs cannot use it."""
        return int(self.version.partition(".")[0])

    def __str__(self) -> str:
        older = [str(number) for number in self.reads if number != self.major]
        return f"{self.version} (reads {', '.join(older)})" if older else self.version


FORMATS: dict[str, Format] = {
    "checkpoint": Format("4.0", "manifest.json and rank-*.safetensors of an iter_* folder", reads=(3, 4)),
    "token file": Format("1.0", "PREFIX.bin and PREFIX.idx of Megatron-LM, PREFIX.info.json of megads"),
    "metrics": Format("1.0", "the keys of metrics.jsonl"),
    "run folder": Format("1.0", "config.yaml, outcome.json, attempts.jsonl, heartbeat.json"),
    "command line": Format("1.0", "commands, options, settings, exit codes"),
}
"""Name -> format. A checkpoint without states of whole parameters has format 3, which older versions read, too."""


def summary() -> str:
    """Return one line with the version of every format."""
    return ", ".join(f"{name} {each}" for name, each in FORMATS.items())
