"""Pickles are read without running what they name."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import enum
import io
import os
import pickle
import random
import subprocess
import sys
import types
import zipfile

import numpy as np
import pytest
import torch

from megads.checkpoint.convert.huggingface.read_tensors import Source
from megads.checkpoint.convert.torch_files.read import StandIn, load, verify_zip
from megads.errors import CheckpointError
from tests.data.samples.index_cache.test_damage import SEED, flip

DAMAGED = r"not a readable file of torch\.save|changed since it was written, its CRC-32 differs"


class _Runs:
    """Unpickled, it calls ``function`` with ``arguments``."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def _touch(path):
    return f"{sys.executable} -c \"open('{path}', 'w')\""


def _codes(mark):
    code = f"open({str(mark)!r}, 'w').close()"
    return {
        "os.system": _Runs(os.system, _touch(mark)),
        "builtins.eval": _Runs(eval, f"__import__('pathlib').Path({str(mark)!r}).touch()"),
        "builtins.exec": _Runs(exec, code),
        "os.mkdir": _Runs(os.mkdir, str(mark)),
        "builtins.__import__": _Runs(builtins.__import__, "antigravity"),
        "subprocess.Popen": _Runs(subprocess.Popen, ["touch", str(mark)]),
        "subprocess.call": _Runs(subprocess.call, ["touch", str(mark)]),
        "pickle.loads": _Runs(pickle.loads, pickle.dumps(_Runs(os.system, _touch(mark)))),
        "runpy._run_code": _RunPy(code),
    }


class _RunPy:
    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        import runpy

        return runpy._run_code, (self.code, {})


# As protocol 2 writes them, which keeps to the names of Python 2.
NAMES = {"os.system": r"(posix|nt)\.system", "os.mkdir": r"(posix|nt)\.mkdir"}


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("where", ["top", "args", "model"])
@pytest.mark.parametrize("name", list(_codes("x")))
def test_code_does_not_run(tmp_path, name, where, is_zip):
    mark, path = tmp_path / "ran", tmp_path / "x.pt"
    code = _codes(mark)[name]
    held = {
        "top": code,
        "args": {"args": argparse.Namespace(a=1, b=[(code,)]), "model": {"w": torch.ones(2)}},
        "model": {"model": {"deep": {"w": torch.ones(2), "x": code}}},
    }[where]
    torch.save(held, path, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(
        CheckpointError, match=NAMES.get(name, name.replace("subprocess", "(subprocess|commands)"))
    ) as refused:
        load(path)
    assert "nothing was executed" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not mark.exists()
    # The file does run code where it is trusted: what was refused was real.
    if name not in ("builtins.__import__", "subprocess.Popen") and where == "top":
        torch.load(path, weights_only=False)
        assert mark.exists()


def test_a_function_of_a_known_program_is_not_called_either(tmp_path):
    """``torch.hub`` and ``numpy`` can run code; their names are stood in for."""
    mark, path = tmp_path / "ran", tmp_path / "x.pt"
    torch.save({"a": _Runs(np.ndarray.tofile, np.zeros(1), str(mark))}, path)
    with pytest.raises(CheckpointError):
        load(path)
    assert not mark.exists()
    torch.save({"a": _Runs(torch.save, [1], str(mark))}, path)
    assert isinstance(load(path)["a"], StandIn)
    assert not mark.exists()


@pytest.fixture
def megatron_classes(monkeypatch):
    """Modules of Megatron and Apex as they are when a checkpoint is saved; gone when it is read."""
    enums, apex = types.ModuleType("megatron.enums"), types.ModuleType("apex.amp.scaler")
    enums.Kind = enum.Enum("Kind", {"rotary": 1, "absolute": 2}, module="megatron.enums")
    apex.LossScaler = type("LossScaler", (), {"__module__": "apex.amp.scaler", "__init__": lambda self: None})
    for name in ("megatron", "apex", "apex.amp"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "megatron.enums", enums)
    monkeypatch.setitem(sys.modules, "apex.amp.scaler", apex)
    return enums.Kind, apex.LossScaler


@pytest.mark.parametrize("is_zip", [True, False])
def test_objects_of_other_programs(tmp_path, megatron_classes, is_zip):
    kind, scaler = megatron_classes
    own = scaler()
    own.scale = 65536.0
    held = {
        "args": argparse.Namespace(kind=kind.absolute, dtype=torch.bfloat16, path=tmp_path, n=3, missing=None),
        "rng_state": [{"np_rng_state": np.random.RandomState(1).get_state(), "torch": torch.get_rng_state()}],
        "optimizer": {"scaler": own, "size": torch.Size([2])},
        "extra": io.BytesIO(b"abc"),
        "model": {"w": torch.arange(6.0).reshape(2, 3)},
    }
    path = tmp_path / "x.pt"
    torch.save(held, path, _use_new_zipfile_serialization=is_zip)
    for name in ("megatron", "megatron.enums", "apex", "apex.amp", "apex.amp.scaler"):
        del sys.modules[name]
    trusted = torch.serialization.get_safe_globals()
    found = load(path)
    assert "apex.amp.scaler" not in sys.modules
    assert set(torch.serialization.get_safe_globals()) == set(trusted)
    args = vars(found["args"])
    assert (args["n"], args["missing"], args["dtype"]) == (3, None, torch.bfloat16)
    assert args["kind"].last in (2, "absolute")
    assert vars(found["optimizer"]["scaler"])["scale"] == 65536.0
    assert torch.equal(found["model"]["w"], torch.arange(6.0).reshape(2, 3))
    assert isinstance(found["extra"], StandIn)


def _truncated(path, data):
    path.write_bytes(data[: len(data) // 2])


def _flipped(path, data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        at = archive.getinfo(next(name for name in archive.namelist() if name.endswith("data.pkl"))).header_offset
    path.write_bytes(data[: at + 70] + b"\xff" * 20 + data[at + 90 :])


@pytest.mark.parametrize(
    "damage",
    [
        _truncated,
        _flipped,
        lambda path, data: path.write_bytes(b""),
        lambda path, data: path.write_bytes(b"PK\x03\x04"),
        lambda path, data: path.write_bytes(b"not a pickle at all"),
        lambda path, data: path.write_bytes(b"\x80\x02" + b"(" * 50),
    ],
)
def test_damaged_files(tmp_path, damage):
    path = tmp_path / "x.pt"
    torch.save({"model": {"w": torch.ones(100)}}, path)
    damage(path, path.read_bytes())
    with pytest.raises(CheckpointError, match=DAMAGED) as refused:
        load(path)
    assert "\n" not in str(refused.value)


def test_a_truncated_file_of_the_old_form(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"model": {"w": torch.ones(1000)}}, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    for length in (10, len(data) // 2, len(data) - 4):
        path.write_bytes(data[:length])
        with pytest.raises(
            CheckpointError,
            match=DAMAGED,
        ):
            load(path)


def test_programs_of_torchscript_are_not_loaded(tmp_path):
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    path = tmp_path / "x.pt"
    torch.jit.script(Double()).save(str(path))
    with pytest.raises(CheckpointError, match=DAMAGED):
        load(path)


def test_a_folder_or_nothing(tmp_path):
    for path in (tmp_path, tmp_path / "none.pt"):
        with pytest.raises(CheckpointError, match="use a file that you can read"):
            load(path)


NUMBERS = {"a": torch.arange(3000.0), "b": torch.ones(7, dtype=torch.bfloat16)}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save(NUMBERS, path)
    return path


def _same(found) -> bool:
    return found.keys() == NUMBERS.keys() and all(torch.equal(found[name], NUMBERS[name]) for name in NUMBERS)


def test_no_flipped_bit_is_silent(saved):
    content, dice, told = saved.read_bytes(), random.Random(SEED), 0
    for _ in range(60):
        bit = dice.randrange(8 * len(content))
        flip(saved, bit)
        with contextlib.suppress(CheckpointError):
            told += 1
            assert _same(load(saved)), f"seed {SEED}: bit {bit}"  # in a padding, or the time of a member
            told -= 1
        saved.write_bytes(content)
    assert told > 40
    assert _same(load(saved))


def test_the_line_names_member_and_file(saved):
    with zipfile.ZipFile(saved) as archive:
        info = next(each for each in archive.infolist() if each.filename.endswith("data/0"))
    flip(saved, 8 * (info.header_offset + 2000))
    line = rf"pytorch_model\.bin: member {info.filename} changed since it was written, its CRC-32 differs; restore"
    for read in (load, lambda path: Source(path.parent)):
        with pytest.raises(CheckpointError, match=line):
            read(saved)


def test_a_file_is_read_once_and_again_when_it_changes(saved, monkeypatch):
    verify_zip(saved)
    opened = []
    zip_file = zipfile.ZipFile
    monkeypatch.setattr(zipfile, "ZipFile", lambda path: opened.append(path) or zip_file(path))
    verify_zip(saved)
    assert not opened
    os.utime(saved, (1, 1))
    verify_zip(saved)
    assert set(opened) == {saved}


def test_sums_that_torch_was_told_to_leave_out_are_not_missed(saved, tmp_path):
    before = torch.serialization.get_crc32_options() if hasattr(torch.serialization, "get_crc32_options") else None
    if before is None:
        pytest.skip("this torch always writes them")
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(NUMBERS, saved)
    finally:
        torch.serialization.set_crc32_options(before)
    assert _same(load(saved))


def test_what_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"x\.pt: is a pipe; use a file that you can read"):
        load(tmp_path / "x.pt")
