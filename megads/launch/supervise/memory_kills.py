"""What the kernel has killed because memory ran out."""

from __future__ import annotations

from pathlib import Path


def memory_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many processes of this host and control group the kernel has killed for memory so far."""
    lines = _lines(proc / "vmstat")
    for group in _lines(proc / "self/cgroup"):
        number, kinds, path = (*group.split(":", 2), "", "")[:3]
        if number == "0":
            lines += _lines(cgroups / path.lstrip("/") / "memory.events")
        elif "memory" in kinds.split(","):
            lines += _lines(cgroups / "memory" / path.lstrip("/") / "memory.oom_control")
    return sum(int(line.split()[1]) for line in lines if line.split()[:1] == ["oom_kill"])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
