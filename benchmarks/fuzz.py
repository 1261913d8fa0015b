"""Feed crafted inputs to the commands, in this process, and see that each is one line in a moment.

    python -m benchmarks.fuzz --count 2000 [--seed 0]

A command with one crafted file or option may end well or with exit code 2 and one line. A traceback, several lines, a
wait beyond the limit, or more memory than the limit is a finding. Crafted are: run folders, checkpoints' manifests,
data lists, token files and their records, Hugging Face configs, tokenizers, and numbers of options.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

LIMIT_S = 20.0
MEMORY = 12 << 30  # bytes of addresses beyond what is in use

SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**18, 10**400, 1e308, -0.0, "", "x", "\x00", "\x1b[2J", "\ud800"),
    *("9" * 4000, [], {}, [[]], ["x"], {"x": 1}, [1] * 1000, "../../etc/passwd", "/dev/zero", "nan", "1" * 100_000),
)
RAW: tuple[bytes, ...] = (
    *(b"", b"\x00", b"\xff" * 64, b"[" * 100_000, b'{"a":' * 50_000, b"- " * 50_000, b"&a [*a, *a]", b"a: *a"),
    *(b"\xef\xbb\xbf{}", b"null", b"3", b'"x"', b"NaN", b"{}", b"[]", b"a: 1\na: 2", b"1e999", b" " * (3 << 20)),
    *(b"1 /dev/zero c", b"1 /x\x00y c", b"nan x", b"1e400 x c", b"x" * (2 << 20), b"1 ${HOME} ${X:-${X}} c"),
)


class TooLong(BaseException):
    """The time of a command is over."""


@contextmanager
def limited() -> Iterator[None]:
    """Give a block so much time and memory."""

    def ring(number: int, frame: object) -> None:
        raise TooLong

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, ring)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, 1.0)  # again, as a finalizer swallows what is raised in it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def run(words: list[str]) -> str:
    """Run a command; return what is wrong with how it ended, empty when nothing is."""
    return ended(words)[1]


def ended(words: list[str]) -> tuple[str, str]:
    """Run a command; return ``done``, ``refused`` or ``finding``, and what is wrong with how it ended."""
    from megads.cli import main

    started = time.monotonic()
    try:
        with limited():
            done = CliRunner().invoke(main, words)
    except TooLong:
        return "finding", f"took more than {LIMIT_S:g} s"
    error = done.exception
    if error is not None and not isinstance(error, SystemExit):
        frame: Any = error.__traceback__
        while frame.tb_next:
            frame = frame.tb_next
        where = f"{frame.tb_frame.f_code.co_filename.rpartition('megads/')[2]}:{frame.tb_lineno}"
        return "finding", f"{type(error).__name__}: {error!s:.100} at {where}"
    if done.exit_code not in (0, 1, 2):
        return "finding", f"exit code {done.exit_code}"
    if done.exit_code == 2 and "--help` lists what there is" in done.stderr:
        return "finding", f"the command line itself is wrong, its input was not read: {done.stderr!r:.200}"
    if done.exit_code == 2 and len(done.stderr.splitlines()) > 3:
        return "finding", f"{len(done.stderr.splitlines())} lines: {done.stderr!r:.200}"
    if time.monotonic() - started > LIMIT_S / 2:
        return "finding", "took long"
    return "refused" if done.exit_code else "done", ""


def mutate(dice: random.Random, content: Any) -> Any:
    """Return ``content`` with one value replaced by a crafted one, dropped or given under another name."""
    if isinstance(content, dict) and content and dice.random() < 0.9:
        key = dice.choice(list(content))
        if dice.random() < 0.1:
            return {name: value for name, value in content.items() if name != key}
        return {**content, key: mutate(dice, content[key])}
    if isinstance(content, list) and content and dice.random() < 0.8:
        at = dice.randrange(len(content))
        return [*content[:at], mutate(dice, content[at]), *content[at + 1 :]]
    return dice.choice(SCALARS)


def craft(dice: random.Random, path: Path, good: bytes) -> None:
    """Write a crafted file in place of a good one: other bytes, another value, no file at all."""
    kind = dice.random()
    path.unlink(missing_ok=True)
    if kind < 0.08:
        os.mkfifo(path)
    elif kind < 0.12:
        path.mkdir()
    elif kind < 0.16:
        path.symlink_to(dice.choice(("/dev/zero", "/dev/null", "/proc/self/mem", path.name, "/dev/tty")))
    elif kind < 0.3:
        path.write_bytes(dice.choice(RAW))
    else:
        try:
            content = mutate(dice, json.loads(good))
            for key in ("crc32",):
                if isinstance(content, dict):
                    content.pop(key, None)
            path.write_text(json.dumps(content), encoding="utf8", errors="surrogatepass")
        except (ValueError, OverflowError):
            changed = bytearray(good)
            for _ in range(dice.randint(1, 8)):
                changed[dice.randrange(len(changed))] = dice.randrange(256)
            path.write_bytes(changed)


HF = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16, "vocab_size": 100},
    **{"max_position_embeddings": 64, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu"},
    **{"tie_word_embeddings": False, "rope_scaling": None, "attention_bias": False, "torch_dtype": "float32"},
}
OUTCOME = {"exit_code": 0, "message": "", "iteration": 3, "kind": "done", "rank": -1, "host": ""}
BEAT = {"iteration": 1, "phase": "step", "since": 1.0, "time": 1.0, "pid": 1, "host": "h", "attempt": 0, "save_s": 0.0}
NUMBERS = ("model.num_layers", "model.hidden_size", "train.train_iters", "train.global_batch", "parallel.data")
VALUES = (
    "0",
    "-1",
    "1e9",
    str(10**18),
    str(10**400),
    "1" * 5000,
    "nan",
    "0x10",
    " ",
    "1_0",
    "\x1b[2J",
    "9007199254740992",
)
ROW = {"iteration": 3, "lm_loss": 2.0, "valid_loss": 2.1, "tokens_per_s": 100.0, "mfu": 0.1}


class Inputs:
    """Makers of inputs: each crafts files in ``folder`` and returns the words of a command."""

    def __init__(self, folder: Path):
        from megads.data.formats.record import Record, record_text
        from megads.data.formats.writer import IndexedWriter

        self.folder = folder
        with IndexedWriter(folder / "good", "u2") as writer:
            for _ in range(5):
                writer.add_document(list(range(20)))
            writer.finalize()
        self.files = {suffix: (folder / f"good{suffix}").read_bytes() for suffix in (".bin", ".idx")}
        self.files[".info.json"] = record_text(Record("f" * 64, "NullTokenizer", "", 100, None, 5, 5, 100)).encode()

    def makers(self) -> list[Callable[[random.Random], list[str]]]:
        """Return all of them."""
        return [self.of_run, self.of_tokens, self.of_list, self.of_hf, self.of_numbers]

    def of_run(self, dice: random.Random) -> list[str]:
        """A run folder."""
        place = self.folder / "runs" / "r"
        place.mkdir(parents=True, exist_ok=True)
        settings = {"train": {"train_iters": 5}, "launch": {"timeout_s": 60}, "model": {"num_layers": 2}}
        good = {"outcome.json": OUTCOME, "heartbeat.json": BEAT, "metrics.jsonl": ROW, "config.yaml": settings}
        for name, content in good.items():
            _drop(place / name)
            if dice.random() < 0.7:
                craft(dice, place / name, json.dumps(content).encode())
        runs = str(place.parent)
        return dice.choice((["runs", runs], ["runs", "--json", runs], ["watch", "--once", str(place)]))

    def of_tokens(self, dice: random.Random) -> list[str]:
        """Token files and their record."""
        spoiled, bad = dice.choice(list(self.files)), str(self.folder / "bad")
        for suffix, content in self.files.items():
            _drop(Path(bad + suffix))
            Path(bad + suffix).write_bytes(content)
            if suffix == spoiled:
                craft(dice, Path(bad + suffix), content)
        merge = ["data", "merge", bad, "--output-prefix", str(self.folder / "merged")]
        return dice.choice((["data", "check", bad], ["data", "info", bad], merge))

    def of_list(self, dice: random.Random) -> list[str]:
        """A data list."""
        path = self.folder / "list.txt"
        _drop(path)
        craft(dice, path, f"1.0 {self.folder / 'good'} corpus\n".encode())
        return ["data", dice.choice(("check", "info")), str(path)]

    def of_hf(self, dice: random.Random) -> list[str]:
        """The settings of a Hugging Face model."""
        place = self.folder / "hf"
        place.mkdir(exist_ok=True)
        _drop(place / "config.json")
        craft(dice, place / "config.json", json.dumps(HF).encode())
        return ["checkpoint", "import-hf", str(place), str(self.folder / "imported")]

    def of_numbers(self, dice: random.Random) -> list[str]:
        """The number of a setting."""
        name, value = dice.choice(NUMBERS), dice.choice(VALUES)
        return ["config", "--set", f"{name}={value}"]


def _drop(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    elif os.path.lexists(path):
        path.unlink()


def fuzz(count: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Run ``count`` crafted inputs; return how many of each kind ended how, and the findings."""
    makers, counts, findings = Inputs(folder).makers(), Counter[str](), []
    for number in range(count):
        dice = random.Random(seed * 1_000_003 + number)
        maker = makers[number % len(makers)]
        words = maker(dice)
        how, problem = ended(words)
        if problem:
            findings.append(f"number {number}: {' '.join(words)!r:.200}: {problem}")
        counts[f"{maker.__name__} {how}"] += 1
    return counts, findings


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=2000, help="inputs")
    parser.add_argument("--seed", type=int, help="default: drawn")
    asked = parser.parse_args()
    seed = random.randrange(10**6) if asked.seed is None else asked.seed
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="megads-fuzz-") as folder:
        counts, findings = fuzz(asked.count, seed, Path(folder))
    print(f"seed {seed}: {dict(counts)} in {time.monotonic() - started:.0f} s, {len(findings)} findings")
    if findings:
        sys.exit("\n".join(findings[:60]))


if __name__ == "__main__":
    main()
