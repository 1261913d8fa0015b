"""A manifest comes back as it was; whatever else lies there is refused in one line."""

import errno
import json
import os
import zlib

import numpy as np
import pytest

from megads.checkpoint.format import manifest as module
from megads.checkpoint.format.manifest import File, Manifest, Run, read_manifest, write_manifest
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.errors import CheckpointError
from tests.checkpoint.made import TENSORS, make

FILE = "rank-00000.safetensors"


def forge(path, change):
    """Change a manifest and give it the right checksum: what follows is not believed either."""
    told = json.loads((path / "manifest.json").read_text())
    changed = change(told)
    told = told if changed is None else changed
    text = changed if isinstance(changed, str) else json.dumps(told)
    if isinstance(told, dict) and "crc32" in told:
        told["crc32"] = "00000000"
        text = json.dumps(told)
        text = text.replace("00000000", f"{zlib.crc32(text.encode()):08x}", 1)
    (path / "manifest.json").write_text(text)


def test_it_comes_back_as_it_was(tmp_path):
    path = make(tmp_path, scalars={"loss_scale": 1024.0}, about={"data": "\u00e9"})
    manifest = read_manifest(path)
    assert manifest.tensors == TENSORS
    assert manifest.kinds == ("weight", "exp_avg", "exp_avg_sq")
    assert manifest.progress == {"iteration": 50, "consumed_samples": 400, "last_loss": 2.5}
    assert (manifest.scalars, manifest.about) == ({"loss_scale": 1024.0}, {"data": "\u00e9"})
    assert manifest.bytes == sum(each.stat().st_size for each in path.glob("*.safetensors"))
    assert manifest.has_optimizer
    assert not manifest.has_generators
    assert Manifest.parse(manifest.dump()) == manifest


def test_runs_are_told_slice_by_slice(tmp_path):
    manifest = read_manifest(make(tmp_path, degree=2, bounds=(0.5,)))
    assert manifest.runs["layers.0.attention.out.weight"] == (
        Run(0, 0, 12, range(0, 4, 2)),
        Run(1, 0, 12, range(1, 4, 2)),
    )
    assert manifest.runs["final_norm.weight"] == (Run(0, 0, 3, range(0, 4, 2)),)
    uneven = read_manifest(make(tmp_path / "uneven", degree=2, bounds=(0.25,)))
    assert uneven.runs["final_norm.weight"] == (Run(0, 0, 1, range(1)), Run(0, 1, 5, range(2, 3)))


def test_what_a_file_holds_is_told(tmp_path):
    manifest = read_manifest(make(tmp_path, degree=2, bounds=(0.5,)))
    rows = {"embedding.weight": 12, "layers.0.attention.qkv.weight": 24, "layers.0.attention.qkv.bias": 4}
    rows |= {"layers.0.attention.out.weight": 12, "final_norm.weight": 3}
    assert sorted(manifest.contents("rank-00000.safetensors")) == sorted((name, 0, n) for name, n in rows.items())
    del rows["final_norm.weight"]
    assert sorted(manifest.contents("rank-00003.safetensors")) == sorted((name, n, n) for name, n in rows.items())


def test_a_loss_that_is_no_number_is_kept(tmp_path):
    manifest = read_manifest(make(tmp_path, progress={"last_loss": float("nan")}, scalars={"x": float("inf")}))
    assert np.isnan(manifest.progress["last_loss"])
    assert manifest.scalars["x"] == float("inf")


def test_each_changed_bit_is_noticed(tmp_path):
    path = make(tmp_path, about={"data": "caf\u00e9"})
    file = path / "manifest.json"
    sound = file.read_bytes()
    rng = np.random.default_rng(2)
    for at in range(len(sound)):
        content = bytearray(sound)
        content[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(content)
        with pytest.raises(CheckpointError):
            read_manifest(path)


def test_each_truncation_is_noticed(tmp_path):
    path = make(tmp_path)
    file = path / "manifest.json"
    sound = file.read_bytes()
    for length in range(0, len(sound), 7):
        file.write_bytes(sound[:length])
        with pytest.raises(CheckpointError, match=r"manifest\.json: not a readable manifest"):
            read_manifest(path)


EMBEDDING, NORM = "embedding.weight", "final_norm.weight"


def runs(told, name=NORM):
    return told["runs"][name]


FORGED = [
    lambda told: [],
    lambda told: "[" * 100_000,
    lambda told: "null",
    lambda told: '{"format": ' + "9" * 5000 + "}",
    lambda told: told.pop("format") and None,
    lambda told: told.pop("crc32") and None,
    lambda told: told.pop("layout") and None,
    lambda told: told.pop("files") and None,
    lambda told: told.update(iteration=-1),
    lambda told: told.update(iteration=50.0),
    lambda told: told.update(iteration=True),
    lambda told: told.update(iteration=float("nan")),
    lambda told: told.update(kinds=[]),
    lambda told: told.update(kinds="weight"),
    lambda told: told.update(kinds=["exp_avg"]),
    lambda told: told.update(kinds=["weight", 5]),
    lambda told: told.update(model=[]),
    lambda told: told.update(settings="x"),
    lambda told: told.update(progress=None),
    lambda told: told.update(scalars=1),
    lambda told: told["layout"].update(tensor=0),
    lambda told: told["layout"].update(tensor="2"),
    lambda told: told["layout"].update(tensor=3),
    lambda told: told["layout"].update(tensor=1),
    lambda told: told["layout"].update(zero_stage=-1),
    lambda told: told["layout"].pop("data") and None,
    lambda told: told.update(tensors=[]),
    lambda told: told["tensors"].update(x=5),
    lambda told: told["tensors"].update(x=[[4], None]),
    lambda told: told["tensors"].update(x=[[], None, []]),
    lambda told: told["tensors"].update(x=[[4, 4, 4], None, []]),
    lambda told: told["tensors"].update(x=[[-4], None, []]),
    lambda told: told["tensors"].update(x=[[0], None, []]),
    lambda told: told["tensors"].update(x=[[1 << 70], None, []]),
    lambda told: told["tensors"].update(x=[[4.5], None, []]),
    lambda told: told["tensors"].update(x=[[4], 1, [4]]),
    lambda told: told["tensors"].update(x=[[4], -1, [4]]),
    lambda told: told["tensors"].update(x=[[4], 0, [3]]),
    lambda told: told["tensors"].update(x=[[4], 0, [5, -1]]),
    lambda told: told["tensors"].update(x=[[4], None, [4]]),
    lambda told: told["tensors"].update(x=[[4], None, []]),
    lambda told: told["tensors"].pop("final_norm.weight") and None,
    lambda told: told["files"].update({"x.safetensors": []}),
    lambda told: told["files"][FILE].update(bytes=-1),
    lambda told: told["files"][FILE].update(bytes=1e300),
    lambda told: told["files"][FILE].update(bytes=float("nan")),
    lambda told: told["files"][FILE].update(bytes="9"),
    lambda told: told["files"][FILE].update(crc32="12"),
    lambda told: told["files"][FILE].update(crc32="+1234567"),
    lambda told: told["files"][FILE].update(crc32=5),
    lambda told: told["files"][FILE].update(tensor=2),
    lambda told: told["files"][FILE].update(tensor=-1),
    lambda told: told["files"][FILE].update(tensor=1),
    lambda told: told["files"][FILE].update(generators=5),
    lambda told: told["files"][FILE].update(generators="0-0"),
    lambda told: told["files"][FILE].update(generators="../0-0-0"),
    lambda told: told["files"].pop(FILE) and None,
    lambda told: told.pop("runs") and None,
    lambda told: told.update(runs=[]),
    lambda told: told["runs"].pop(NORM) and None,
    lambda told: told["runs"].update(nothing=[[0, 1, 0, 1, 1]]),
    lambda told: told["runs"].update({NORM: {}}),
    lambda told: runs(told).clear(),
    lambda told: runs(told).append(5),
    lambda told: runs(told).append([0, 1, 0, 1]),
    lambda told: runs(told).append([6, 0, 0, 1, 1]),
    lambda told: runs(told).append([0, 1, 0, 1, 1]),
    lambda told: runs(told).append([6, 1, 0, 1, 1]),
    lambda told: runs(told)[0].__setitem__(0, -3),
    lambda told: runs(told)[0].__setitem__(0, 1),
    lambda told: runs(told)[0].__setitem__(1, 0),
    lambda told: runs(told)[0].__setitem__(1, -1),
    lambda told: runs(told)[0].__setitem__(1, 1.5),
    lambda told: runs(told)[0].__setitem__(1, 1 << 60),
    lambda told: runs(told)[0].__setitem__(1, float("inf")),
    lambda told: runs(told)[0].__setitem__(2, 9),
    lambda told: runs(told)[0].__setitem__(2, 10**4200),
    lambda told: runs(told)[0].__setitem__(2, True),
    lambda told: runs(told)[0].__setitem__(3, 0),
    lambda told: runs(told)[0].__setitem__(3, 1 << 70),
    lambda told: runs(told)[0].__setitem__(3, 10**4200),
    lambda told: runs(told)[0].__setitem__(4, 0),
    lambda told: runs(told)[0].__setitem__(4, -1),
    lambda told: runs(told, "embedding.weight")[0].__setitem__(2, 1),
]


@pytest.mark.parametrize("change", FORGED, ids=range(len(FORGED)))
def test_what_is_no_manifest_is_refused_in_one_line(tmp_path, change):
    """Although its checksum is right. Nothing outside the folder is looked at, no memory is taken."""
    path = make(tmp_path)
    forge(path, change)
    with pytest.raises(CheckpointError, match=r"manifest\.json: not a readable manifest \(.+\)$") as raised:
        read_manifest(path)
    assert len(str(raised.value)) < len(str(path)) + 300


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        f"{FILE}/../../x",
        f"{FILE}\n",
        "a\0b.safetensors",
        "..",
        "",
        ".safetensors",
        "manifest.json",
        "caf\u00e9.safetensors",
    ],
)
def test_a_file_lies_in_the_folder_of_its_checkpoint(tmp_path, name):
    path = make(tmp_path)
    forge(path, lambda told: told["files"].update({name: told["files"].pop(FILE)}))
    with pytest.raises(CheckpointError, match="where the name of a file of this folder belongs"):
        read_manifest(path)


def test_a_tensor_has_no_more_numbers_than_its_files_have_bytes(tmp_path):
    path = make(tmp_path)

    def inflate(told):
        told["tensors"]["x"] = [[1 << 60], None, []]
        told["runs"]["x"] = [[0, 1 << 60, 0, 1, 1]]

    forge(path, inflate)
    with pytest.raises(CheckpointError, match="bytes, too few for 11529"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda told: runs(told, EMBEDDING).pop(1) and None, "has 9 of 24 elements of slice 0"),
        (lambda told: runs(told, EMBEDDING).pop(0) and None, "before 9 of slice 0 are missing"),
        (lambda told: runs(told, EMBEDDING)[0].__setitem__(1, 10), "before 9 of slice 0 are there twice"),
        (lambda told: told["files"]["rank-00001.safetensors"].update(tensor=0), "before 0 of slice 0 are there twice"),
        (lambda told: told["files"].pop("rank-00002.safetensors") and None, "where a run belongs, of rank-00002"),
        (lambda told: runs(told, EMBEDDING)[0].__setitem__(3, 2), "is in rank-00001.*, which does not hold slice 0"),
        (lambda told: runs(told, EMBEDDING)[0].__setitem__(3, 1 << 80), "is in rank-00001.*, which does not hold"),
    ],
)
def test_each_number_must_be_there_once(tmp_path, change, message):
    path = make(tmp_path)
    forge(path, change)
    with pytest.raises(CheckpointError, match=message):
        read_manifest(path)


def test_what_is_whole_on_every_rank_is_there_from_the_first_only(tmp_path):
    path = make(tmp_path)
    forge(path, lambda told: runs(told).append([6, 1, 1, 2, 1]))
    with pytest.raises(CheckpointError, match=r"final_norm\.weight is replicated on every tensor-parallel rank"):
        read_manifest(path)


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda path: (path / "manifest.json").unlink(), r"has no manifest\.json; it is not a complete checkpoint"),
        (lambda path: (path / FILE).unlink(), r"rank-00000\.safetensors: No such file.*the manifest says \d+ bytes"),
        (lambda path: os.truncate(path / FILE, 5), r"rank-00000\.safetensors: 5 bytes, the manifest says \d+"),
        (lambda path: (path / FILE).unlink() or (path / FILE).mkdir(), r"safetensors: no file, the manifest says"),
        (lambda path: (path / "manifest.json").write_bytes(b"\xff"), "not a readable manifest"),
        (lambda path: (path / "manifest.json").write_text(""), "not a readable manifest"),
        (
            lambda path: forge(path, lambda told: told.update(format=2)),
            "format 2, this version reads 3, 4; use the version",
        ),
        (lambda path: forge(path, lambda told: told.update(format=[1])), r"format \[1\], this version reads 3"),
    ],
)
def test_damage_is_told_in_one_line(tmp_path, break_it, message):
    path = make(tmp_path)
    break_it(path)
    with pytest.raises(CheckpointError, match=message):
        read_manifest(path)


def test_a_manifest_without_end_is_not_read_to_its_end(tmp_path, monkeypatch):
    path = make(tmp_path)
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(CheckpointError, match="has more than"):
        read_manifest(path)


def test_a_manifest_that_none_would_read_is_not_written(tmp_path, monkeypatch):
    manifest = read_manifest(make(tmp_path))
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(OSError, match=r"its manifest has \d+ bytes, more than 100") as raised:
        write_manifest(tmp_path, manifest)
    assert raised.value.errno == errno.EFBIG
    assert not (tmp_path / "manifest.json").exists()


def test_a_checkpoint_under_the_name_of_another_is_refused(tmp_path):
    path = make(tmp_path, 50)
    other = path.rename(tmp_path / "iter_0000100")
    with pytest.raises(CheckpointError, match="is of iteration 50, its name says 100"):
        read_manifest(other)
    assert read_manifest(other.rename(tmp_path / "my-backup")).iteration == 50


def test_a_manifest_that_is_not_whole_is_never_committed(tmp_path):
    files, held = {FILE: File(100, 0, 0)}, {"a": (Run(0, 0, 3, range(1)),)}
    layout = {"pipe": 1, "data": 1, "seq": 1, "tensor": 1, "zero_stage": 0}
    with pytest.raises(ValueError, match="a has 3 of 4 elements of slice 0"):
        Manifest(0, ("weight",), layout, {}, {"a": ShardLayout((4,))}, files, held).check()
