"""Rules of the shim, the library built once, and three ways to have a process use it."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.simgpu.build import cache_folder

SOURCE = Path(__file__).with_name("shim.c")
OPTIONS = ("-O1", "-shared", "-fPIC", "-w")

CALLS = re.compile(
    "open|create|close|read|write|truncate|fsync|rename|link|unlink|mkdir|rmdir|list|stat|utime|flock|cache|skew|coarse"
)
ACTIONS = re.compile(
    "short|slow|rate|gap|granted|kill|stop|on|"
    "EIO|ENOSPC|EDQUOT|ESTALE|ENOLCK|ENOSYS|EROFS|EACCES|EPERM|ENOENT|EEXIST|EINTR|EAGAIN|EBUSY|EXDEV|ETIMEDOUT|"
    "ENOTEMPTY|EOPNOTSUPP|EREMOTEIO|ENOTCONN|EMFILE|EFBIG"
)


@dataclass(frozen=True)
class Rule:
    """What happens to some calls.

    Attributes:
        call: open, create (an open that may create), close, read, write, truncate, fsync, rename (the new name),
            link (hard or symbolic), unlink, mkdir, rmdir, list, stat, utime, flock; or a property of the file system:
            cache (attributes and absence are remembered for ``amount`` seconds, until the folder is listed),
            skew (times of the server are ``amount`` seconds ahead), coarse (mtimes are multiples of ``amount`` s).
        path: pattern of the absolute path; ``*`` also matches ``/``.
        do: the name of an errno; short (write or read: ``amount`` bytes, 0: half); slow (``amount`` seconds before
            the call); rate (read, write: ``amount`` bytes per second); gap (rename: the old file is gone for
            ``amount`` seconds before the new one appears); granted (flock: True without a lock, as between hosts);
            kill or stop (this process); on (a property).
        amount: see ``do`` and ``call``.
        first: number of the first matching call that is changed, from 1.
        count: how many calls are changed; 0: all from ``first`` on.
        after: the call is made, then the error is returned or the process killed. NFS does so when the answer is
            lost and the request is repeated.
    """

    call: str
    path: str
    do: str = "on"
    amount: float = 0.0
    first: int = 1
    count: int = 0
    after: bool = False

    def line(self) -> str:
        """Return the rule as the library reads it."""
        assert CALLS.fullmatch(self.call), f"no call {self.call}"
        assert ACTIONS.fullmatch(self.do), f"no action {self.do}"
        assert re.fullmatch(r"[^\t\n]{1,500}", self.path), f"no pattern of a path: {self.path!r}"
        words = (self.call, self.path, self.first, self.count, int(self.after), self.do, float(self.amount))
        return "\t".join(map(str, words))


def library() -> Path:
    """Return the shared library; whoever comes first builds it, and the others wait."""
    key = hashlib.sha256(f"{OPTIONS}".encode() + SOURCE.read_bytes()).hexdigest()[:16]
    made = cache_folder("megads-shim") / f"shim-{key}.so"
    if made.exists():
        return made
    with open(made.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            unfinished = made.with_suffix(f".{os.getpid()}")
            command = [os.environ.get("CC") or "gcc", *OPTIONS, str(SOURCE), "-o", str(unfinished), "-ldl", "-lpthread"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert not done.returncode, f"the shim does not compile:\n{done.stderr[-4000:]}"
            unfinished.rename(made)
    return made


def shim_env(rules: Sequence[Rule], *, counts: Path | None = None, host: str = "") -> dict[str, str]:
    """Return the variables with which a process that is started, and all that it starts, keeps ``rules``.

    A forked command of ``tests/forks`` with these variables becomes a new interpreter; :func:`planted` is cheaper.

    Args:
        rules: at most 64; the first that matches a call changes it, and all that match count it.
        counts: a file in which all processes count together; None: each process by itself.
        host: the host's name as the process sees it; empty: the real one.
    """
    variables = {"LD_PRELOAD": str(library()), "MEGADS_SHIM_RULES": _text(rules)}
    variables["MEGADS_SHIM_COUNTS"] = str(counts or "")
    variables["MEGADS_SHIM_HOST"] = host
    return variables


def planted(rules: Sequence[Rule], *, counts: Path | None = None, host: str = "") -> str:
    """Return Python text after which the process that runs it, and all forked from it, keeps ``rules``.

    Libraries that are loaded later are not changed; forked commands have loaded them all.
    """
    arguments = [text.encode() for text in (_text(rules), str(counts or ""), host)]
    return (
        "import ctypes\n"
        f"shim = ctypes.CDLL({str(library())!r})\n"
        f"shim.shim_rules({', '.join(map(repr, arguments))})\n"
        "assert shim.shim_install() > 0\n"
    )


@contextmanager
def shimmed(rules: Sequence[Rule], *, counts: Path | None = None, host: str = "") -> Iterator[None]:
    """Have this process, and what is forked in the block, keep ``rules`` until the block ends."""
    shim = _loaded()
    assert shim.shim_rules(_text(rules).encode(), str(counts or "").encode(), host.encode()) == len(rules)
    shim.shim_install()
    try:
        yield
    finally:
        shim.shim_rules(b"", b"", b"")


@cache
def _loaded() -> ctypes.CDLL:
    return ctypes.CDLL(str(library()))


def _text(rules: Sequence[Rule]) -> str:
    assert len(rules) <= 64, f"{len(rules)} rules, at most 64"
    return "".join(f"{rule.line()}\n" for rule in rules)


def without_shim(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` without the shim's variables."""
    return {name: value for name, value in env.items() if name != "LD_PRELOAD" and not name.startswith("MEGADS_SHIM_")}
