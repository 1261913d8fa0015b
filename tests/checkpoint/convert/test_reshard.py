"""Resharded: every number is there once, in the file of the rank that owns it."""

import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from megads.checkpoint.convert import reshard as module
from megads.checkpoint.convert.reshard import reshape, shares_of, target_of
from megads.checkpoint.format.blocks import TensorFile
from megads.checkpoint.format.folders import list_checkpoints
from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.shard_layout import parameters_of
from megads.checkpoint.resume.start_point import source_of
from megads.comm.grid import Grid
from megads.config.stages import stage_steps
from megads.errors import CheckpointError, ConfigError
from tests.checkpoint.sources import KINDS, make_arrays, take_slice, write_source
from tests.models.shapes import GPT, LLAMA
from tests.models.shapes import KINDS as MODELS

ROOT = Path(__file__).parents[3]
FOUR = {name: model.model_copy(update={"num_layers": 4}) for name, model in MODELS.items()}
ARRAYS = {name: make_arrays(model) for name, model in FOUR.items()}


def random_layouts(count, seed):
    """Return pairs of layouts (pipe, data, seq, tensor, zero_stage) that every model of ``FOUR`` can have."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        pair = []
        for _ in range(2):
            pipe, tensor = draw.choice([1, 2, 4]), draw.choice([1, 2, 4])
            data, seq = draw.choice([1, 2, 3, 4]), draw.choice([1, 2]) if tensor < 8 else 1
            pair.append((pipe, data, seq, tensor, draw.choice([0, 1] if pipe > 1 else [0, 1, 2, 3])))
        found.append(tuple(pair))
    return found


def wanted_of(layout):
    pipe, data, seq, tensor, zero_stage = layout
    return {"pipeline": pipe, "data": data, "sequence": seq, "tensor": tensor, "zero_stage": zero_stage}


def reshaped(source, folder, layout, **more):
    manifest = read_manifest(source)
    return reshape(source, manifest, folder, target_of(manifest, **wanted_of(layout)), **more)


def assert_same(path, arrays, kinds=KINDS):
    with Reader(path) as reader:
        assert reader.manifest.kinds == tuple(kinds)
        for kind, name in arrays:
            if kind in kinds:
                np.testing.assert_array_equal(reader.whole(name, kind), arrays[kind, name], err_msg=f"{kind} {name}")


@pytest.mark.parametrize("kind", FOUR)
@pytest.mark.parametrize("number", range(12))
def test_every_number_comes_through(kind, number, tmp_path):
    before, after = random_layouts(12, kind)[number]
    model, arrays = FOUR[kind], ARRAYS[kind]
    source = write_source(tmp_path / "a", model, arrays, Grid(*before[:4]), seed=number, zero_stage=before[4])
    done = reshaped(source, tmp_path / "b", after, workers=3)
    assert done.path == tmp_path / "b/iter_0000050"
    assert_same(done.path, arrays)
    had, has = read_manifest(source), read_manifest(done.path)
    assert has.layout == dict(zip(("pipe", "data", "seq", "tensor", "zero_stage"), after, strict=True))
    for field in ("iteration", "progress", "scalars", "settings", "model", "tensors"):
        assert getattr(has, field) == getattr(had, field), field
    assert has.about == {"megads": "0", "reshaped_from": had.layout}
    assert len(has.files) == Grid(*after[:4]).world_size


@pytest.mark.parametrize("layout", [(2, 2, 1, 2, 1), (1, 3, 2, 2, 3), (4, 1, 1, 1, 0)])
def test_a_rank_owns_what_is_in_its_file(layout, tmp_path):
    """The slices are cut with numpy here, and the runs of data x seq must be even and in order."""
    model, arrays = FOUR["gpt"], ARRAYS["gpt"]
    source = write_source(tmp_path / "a", model, arrays, Grid())
    manifest = read_manifest(source)
    run = target_of(manifest, **wanted_of(layout))
    path = reshape(source, manifest, tmp_path / "b", run).path
    grid, sizes = Grid(*layout[:4]), []
    for rank in range(grid.world_size):
        at, name = grid.coordinate(rank), f"rank-{rank:05d}.safetensors"
        has = read_manifest(path)
        facts, pieces = has.files[name], has.contents(name)
        assert facts.tensor == at["tensor"] or not pieces
        steps = stage_steps(run)[at["pipe"]]
        with TensorFile(path / name, facts.crc32) as file:
            assert set(file.entries) == {f"{kind}/{piece}" for kind in KINDS for piece, _, _ in pieces}
            for kind in KINDS:
                for piece, first, count in pieces:
                    cut = parameters_of(model)[piece]
                    local = take_slice(arrays[kind, piece], cut.dim, cut.parts, at["tensor"], grid.tensor).reshape(-1)
                    np.testing.assert_array_equal(file.read(f"{kind}/{piece}"), local[first : first + count])
                    layer = int(piece.split(".")[1]) + 1 if piece.startswith("layers.") else None
                    assert layer is None or layer in steps
        if at["tensor"] == 0:
            sizes.append((at["pipe"], sum(count for _, _, count in pieces)))
    for stage in range(grid.pipe):
        mine = [size for pipe, size in sizes if pipe == stage]
        assert max(mine) - min(mine) <= len(arrays), "data x seq ranks share evenly"


def test_weights_only(tmp_path):
    source = write_source(tmp_path / "a", FOUR["llama"], ARRAYS["llama"], Grid(data=2))
    done = reshaped(source, tmp_path / "b", (1, 1, 1, 2, 0), weights_only=True)
    assert_same(done.path, ARRAYS["llama"], kinds=("weight",))
    assert not done.manifest.has_optimizer
    assert done.manifest.scalars == {}
    assert done.manifest.bytes < read_manifest(source).bytes / 2
    # And from there on.
    again = reshaped(done.path, tmp_path / "c", (2, 1, 1, 1, 0))
    assert_same(again.path, ARRAYS["llama"], kinds=("weight",))


def test_what_is_not_given_stays(tmp_path):
    settings = {"model": GPT.model_dump(), "parallel": {"pipeline_split": "1,3"}}
    source = write_source(tmp_path, FOUR["gpt"], ARRAYS["gpt"], Grid(2, 3, 1, 2), zero_stage=1, settings=settings)
    grid = target_of(read_manifest(source)).parallel
    assert (grid.pipeline, grid.data, grid.sequence, grid.tensor, grid.zero_stage) == (2, 3, 1, 2, 1)
    assert grid.pipeline_split == "1,3"
    assert target_of(read_manifest(source), pipeline=4).parallel.pipeline_split == "layers"
    run = target_of(read_manifest(source), pipeline=2, pipeline_split="3,1")
    assert stage_steps(run) == (range(4), range(4, 6))
    assert {share.name for share in shares_of(run)[-1]} >= {"layers.3.mlp.down.weight"}


def test_chunks_of_a_stage_stay_with_its_layers(tmp_path):
    settings = {"parallel": {"virtual_stages": 2}, "engine": {"kind": "native"}}
    source = write_source(tmp_path, FOUR["gpt"], ARRAYS["gpt"], Grid(2), zero_stage=0, settings=settings)
    first, last = ({share.name for share in file} for file in shares_of(target_of(read_manifest(source))))
    assert {name.split(".")[1] for name in first if name.startswith("layers")} == {"0", "2"}
    assert {name.split(".")[1] for name in last if name.startswith("layers")} == {"1", "3"}
    # Other stages, or a list of layers, are of whole stages.
    assert target_of(read_manifest(source), pipeline=4).parallel.virtual_stages == 0
    assert target_of(read_manifest(source), pipeline_split="1,3").parallel.virtual_stages == 0


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"tensor": 3}, "HEADS=8 cannot be split over TP=3 ranks; use --tp=2 or --tp=4"),
        ({"tensor": 16}, "HEADS=8 cannot be split over TP=16 ranks; use --tp="),
        ({"pipeline": 5}, "PP=5 stages cannot share NLAYERS=4 layers; use --pp=4 or --pp=3"),
        ({"sequence": 16}, "SP=16 ranks cannot share HEADS / TP = 8 / 1 = 8 query heads: each needs one; use --sp="),
        ({"sequence": 5}, "SEQ=12 tokens cannot be split over SP=5 ranks; use --sp="),
        ({"pipeline": 2, "pipeline_split": "1,1"}, "PIPELINE_SPLIT=1,1 must list the layers of each of PP=2"),
        ({"pipeline": 2, "pipeline_split": "even"}, "PIPELINE_SPLIT='even' is not layers, ends, parameters or a list"),
    ],
)
def test_a_layout_that_can_not_be(wanted, told, tmp_path):
    manifest = read_manifest(write_source(tmp_path, FOUR["llama"], ARRAYS["llama"], Grid()))
    with pytest.raises(ConfigError) as refused:
        target_of(manifest, **wanted)
    assert told in str(refused.value)


def damaged(source):
    """Flip a bit in the middle of the source's last file."""
    file = sorted(source.glob("*.safetensors"))[-1]
    content = bytearray(file.read_bytes())
    content[-5] ^= 4
    file.write_bytes(content)


def test_a_damaged_source_leaves_nothing(tmp_path):
    source = write_source(tmp_path / "a", FOUR["llama"], ARRAYS["llama"], Grid(data=2))
    damaged(source)
    with pytest.raises(CheckpointError, match="changed since it was written"):
        reshaped(source, tmp_path / "new/b", (1, 2, 1, 2, 1), workers=4)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_was_there_stays(tmp_path):
    source = write_source(tmp_path / "a", FOUR["llama"], ARRAYS["llama"], Grid())
    other = write_source(tmp_path / "b", FOUR["llama"], ARRAYS["llama"], Grid(), iteration=20)
    damaged(source)
    with pytest.raises(CheckpointError):
        reshaped(source, tmp_path / "b", (1, 2, 1, 1, 1))
    assert list((tmp_path / "b").iterdir()) == [other]


def test_a_checkpoint_is_never_replaced(tmp_path):
    source = write_source(tmp_path / "a", FOUR["llama"], ARRAYS["llama"], Grid())
    for folder, told in ((tmp_path / "a", "a checkpoint already exists"), (source, "is a checkpoint; pass the")):
        with pytest.raises(CheckpointError, match=told):
            reshaped(source, folder, (1, 1, 1, 2, 1))
    assert_same(source, ARRAYS["llama"])


def test_the_source_that_is_meant(tmp_path):
    run = tmp_path / "run"
    for iteration in (10, 20, 30):
        last = write_source(run / "checkpoints", LLAMA, make_arrays(LLAMA), Grid(), iteration=iteration)
    assert source_of(run).path == last
    assert source_of(run / "checkpoints").path == last
    assert source_of(run, 10).path == run / "checkpoints/iter_0000010"
    (last / "rank-00000.safetensors").write_bytes(b"")
    found = source_of(run)
    assert found.path == run / "checkpoints/iter_0000020"
    assert "0 bytes, the manifest says" in found.broken[0]
    for place, step in ((last, None), (run, 30)):
        with pytest.raises(CheckpointError, match="0 bytes, the manifest says"):
            source_of(place, step)
    with pytest.raises(CheckpointError, match="no checkpoint of iteration 11; the newest are 10, 20, 30"):
        source_of(run, 11)


def test_many_files_do_not_need_many_handles(tmp_path, monkeypatch):
    """A source of more ranks than a process may have files open, to as many."""
    source = write_source(tmp_path / "a", FOUR["llama"], ARRAYS["llama"], Grid(pipe=4, data=16))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(module, "CHUNK", 64)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    try:
        path = reshaped(source, tmp_path / "b", (4, 8, 1, 1, 1)).path
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert_same(path, ARRAYS["llama"])


WIDE = LLAMA.model_copy(update={"hidden_size": 512, "ffn_hidden_size": 2048, "head_dim": 64})
CHUNK, BAND = 2**18, 2**20
MEASURED = """
import sys
from pathlib import Path
from megads.checkpoint.format import reader; from megads.checkpoint.convert import reshard as reshaping
from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.convert.reshard import target_of

def most():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

source, folder = map(Path, sys.argv[1:3])
reshaping.CHUNK, reader.BAND = map(int, sys.argv[3:])
manifest = read_manifest(source)
run = target_of(manifest, tensor=4)
before = most()
reshaping.reshape(source, manifest, folder, run, workers=1)
print(manifest.bytes, most() - before)
"""


def test_memory_does_not_grow_with_the_model(tmp_path):
    """A worker holds a chunk, the one before it, and a band of the rows from which it is cut, read and copied."""
    used = {}
    for layers in (1, 3):
        model = WIDE.model_copy(update={"num_layers": layers})
        source = write_source(tmp_path / f"a{layers}", model, make_arrays(model), Grid())
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, str(source), str(tmp_path / f"b{layers}"), str(CHUNK), str(BAND)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        size, used[layers] = map(int, done.stdout.split())
    bound = 4 * (2 * CHUNK + 2 * BAND) + 2**23
    assert size > 8 * bound
    assert 0 < used[3] < bound, used
    assert used[3] < used[1] + 2**22, used


def test_killed_half_way_nothing_is_visible(tmp_path):
    source = write_source(tmp_path / "a", FOUR["llama"], ARRAYS["llama"], Grid(data=2))
    slowly = (
        "import time; from megads.checkpoint.convert import reshard as r; r.CHUNK = 64; read = r._Job._read\n"
        "def slow(*a):\n    for chunk in read(*a):\n        time.sleep(0.01); yield chunk\n"
        "r._Job._read = slow\nfrom megads.cli import main; main()"
    )
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        folder = tmp_path / number.name
        words = ["checkpoint", "reshape", str(source), str(folder), "--tp", "2"]
        process = subprocess.Popen(
            [sys.executable, "-c", slowly, *words],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 30
        while not list(folder.glob("*.tmp/rank-00001*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        _, told = process.communicate(timeout=30)
        assert process.returncode != 0
        assert list_checkpoints(folder) == []
        if number == signal.SIGINT:
            assert told.strip() == "megads: interrupted"
            assert not folder.exists()
            continue
        assert sorted(each.name for each in folder.iterdir()) == ["iter_0000050.tmp", "iter_0000050.tmp.lock"]
        assert_same(reshaped(source, folder, (1, 2, 1, 2, 1)).path, ARRAYS["llama"])
        assert [each.name for each in folder.iterdir()] == ["iter_0000050"], "what was left goes with the next call"


@pytest.mark.parametrize("kind", FOUR)
def test_the_reader_in_the_document(kind, tmp_path):
    """A stranger's reader, which shares nothing with ours, reads the same; and sees a damage."""
    source = write_source(tmp_path, FOUR[kind], ARRAYS[kind], Grid(pipe=2, data=2, seq=1, tensor=4))
    document = (ROOT / "docs/checkpoints.md").read_text()
    reader = {}
    exec(re.search(r"```python\n(.*?)```", document, re.DOTALL)[1], reader)
    for stored, name in ARRAYS[kind]:
        np.testing.assert_array_equal(reader["read"](source, name, stored), ARRAYS[kind][stored, name])
    damaged(source)
    with pytest.raises(AssertionError, match="damaged"):
        any(reader["read"](source, name) is None for _, name in ARRAYS[kind])
