"""Checkpoints of every kind to spoil, and what spoils them. Each command runs in this process, which is cheap."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from megads.checkpoint.format.manifest import MANIFEST
from megads.cli import main
from megads.comm.grid import Grid
from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from tests.checkpoint.sources import make_arrays, write_source
from tests.data.factory import write_dataset, write_list
from tests.e2e.refused import DATA, TINY, tree

NOBODY = 65534
RUN = {
    **TINY,
    **DATA,
    **{"NLAYERS": "2", "HEADS": "2", "NUM_KV_HEAD": "2", "DATA_FILE_LIST": "list.txt", "RUN_DIR": "run"},
    **{"MACHINE": "cpu", "DTYPE": "fp32", "GLOBAL_BATCH": "8", "TRAIN_ITERS": "40", "DATA_CACHE_PATH": "cache"},
}
"""Settings of the run whose checkpoints are spoilt."""

Spoil = Callable[[Path], object]


def derived(**changes: str) -> RunConfig:
    """Return the derived settings of a run on one rank."""
    resolved = resolve(env={**RUN, **changes}, machine="generic")
    return derive(resolved, num_hosts=1, ranks_per_host=1, vocab_size=0).run


def lay_ground(folder: Path) -> None:
    """Write data, a run of three checkpoints, others of other models, and foreign folders of the same weights."""
    write_dataset(folder, [50] * 40)
    write_list(folder / "list.txt", "1 data text")
    (folder / "cache").mkdir()
    (folder / "notes").mkdir()
    (folder / "notes/notes.txt").write_text("nothing")
    (folder / "empty").mkdir()
    run = derived()
    for iteration in (10, 20, 30):
        arrays = make_arrays(run.model, seed=iteration)
        about = {"settings": run.model_dump(), "progress": {"iteration": iteration}, "iteration": iteration}
        write_source(folder / "run/checkpoints", run.model, arrays, Grid(data=2), zero_stage=1, **about)
    write_source(folder / "bare/checkpoints", run.model, arrays, Grid(), kinds=("weight",), **about)
    other = derived(NLAYERS="4", HIDDEN="16").model
    write_source(folder / "wide", other, make_arrays(other), Grid(), iteration=5)
    gpt = derived(NO_LLAMA="1", MAX_POSITIONS="8").model
    write_source(folder / "gpt", gpt, make_arrays(gpt), Grid(), iteration=0, kinds=("weight",))
    for words in (
        ("export-hf", "bare", "hf", "--no-tokenizer", "--max-shard-size", "2kB"),
        ("export-hf", "gpt", "gpt2", "--no-tokenizer"),
        ("export-megatron", "bare", "megatron", "--tp", "2", "--iteration", "30"),
    ):
        code, _, err = call(folder, "checkpoint", *words)
        assert code == 0, err


@contextmanager
def here(folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    """Work in ``folder`` with no environment but ``env``."""
    kept, before = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}, os.getcwd()
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - {"PYTEST_CURRENT_TEST"}:
            patch.delenv(name)
        for name, value in {**kept, "MEGADS_DEVICE": "cpu", "MACHINE": "cpu", **env}.items():
            patch.setenv(name, value)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def call(folder: Path, *words: str, by_nobody: bool = False, **env: str) -> tuple[int, str, str]:
    """Call ``megads`` in this process and in ``folder``; return its exit code, stdout and stderr."""
    out, err = StringIO(), StringIO()
    user = as_nobody(folder) if by_nobody else nullcontext()
    with (
        here(folder, env),
        user,
        redirect_stdout(out),
        redirect_stderr(err),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("default")
        try:
            main(list(words))
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
    # What a process of its own would have printed there, too.
    return code, out.getvalue(), err.getvalue() + "".join(f"{each.message}\n" for each in warned)


def refused(folder: Path, *words: str, told: str, **env: str) -> str:
    """Call ``megads``, check that one line refuses it and that nothing is changed; return the line."""
    before = tree(folder)
    code, out, err = call(folder, *words, **env)
    assert code == 2, f"exit code {code}: {out}{err}"
    assert out == ""
    assert err.startswith("megads: "), err
    assert err.count("\n") == 1, err
    assert told in err, f"{told!r} is not in {err}"
    assert tree(folder) == before
    return err


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Be a user who may read ``folder``, but not everything; the superuser may."""
    folder.chmod(0o755)
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


# What spoils a checkpoint. ``CKPT`` is the newest of the run.

CKPT = "run/checkpoints/iter_0000030"
FILE = f"{CKPT}/rank-00001.safetensors"


def remove(name: str) -> Spoil:
    """Return what removes a file or folder."""
    return lambda folder: shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


def write(name: str, content: bytes | str) -> Spoil:
    """Return what writes a file again."""
    raw = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(raw)


def shorten(name: str, count: int) -> Spoil:
    """Return what takes the last bytes of a file."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-count])


def flip(name: str, at: int) -> Spoil:
    """Return what flips a bit of a file, its size unchanged."""

    def apply(folder: Path) -> None:
        raw = bytearray((folder / name).read_bytes())
        raw[at] ^= 1
        (folder / name).write_bytes(raw)

    return apply


def copy(name: str, over: str) -> Spoil:
    """Return what puts a file in the place of another."""
    return lambda folder: shutil.copy(folder / name, folder / over)


def move(name: str, to: str) -> Spoil:
    """Return what gives a file or folder another name."""
    return lambda folder: (folder / name).rename(folder / to)


def into_folder(name: str) -> Spoil:
    """Return what puts a folder in the place of a file."""

    def apply(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return apply


def link_to_itself(name: str) -> Spoil:
    """Return what makes a link to itself."""
    return lambda folder: (folder / name).symlink_to(folder / name)


def forbid(name: str) -> Spoil:
    """Return what takes every permission of a file or folder."""
    return lambda folder: (folder / name).chmod(0)


def edit(name: str, change: Callable[[Any], object]) -> Spoil:
    """Return what changes the content of a JSON file; of a manifest the checksum is made right again."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        if name.endswith(MANIFEST):
            content["crc32"] = "0" * 8
        text = json.dumps(content)
        if name.endswith(MANIFEST):
            text = text.replace("0" * 8, f"{zlib.crc32(text.encode()):08x}", 1)
        (folder / name).write_text(text)

    return apply


def every(*spoils: Spoil) -> Spoil:
    """Return what does all of ``spoils``."""
    return lambda folder: [spoil(folder) for spoil in spoils]


class Bomb:
    """An object whose pickle runs code: it makes the file ``boom``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("boom",))


def put_pickle(name: str, *, with_torch: bool) -> Spoil:
    """Return what writes a pickle with code in it."""

    def apply(folder: Path) -> None:
        content = {"model": {"weight": Bomb()}, "args": Bomb(), "iteration": 3}
        if with_torch:
            torch.save(content, folder / name)
        else:
            (folder / name).write_bytes(pickle.dumps(content))

    return apply


def save_torch(name: str, content: Any) -> Spoil:
    """Return what writes ``content`` as torch.save does."""
    return lambda folder: torch.save(content, folder / name)


@dataclass(frozen=True)
class Wrong:
    """A bad input: what is spoilt, the words of the command, and what the line must say."""

    name: str
    spoil: Spoil | None
    words: str
    told: str
    env: Mapping[str, str] | None = None


def as_parameters(cases: list[Wrong]) -> list[Any]:
    """Return ``cases`` for pytest, each by its name."""
    assert len({case.name for case in cases}) == len(cases)
    return [pytest.param(case, id=case.name) for case in cases]
