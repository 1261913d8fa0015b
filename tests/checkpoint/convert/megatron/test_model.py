"""Slices of a model in Megatron's files: those of its import, whatever layout both have, and no more in memory."""

from __future__ import annotations

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.checkpoint.convert.megatron.model import MegatronModel
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.shard_layout import parameters_of
from megads.errors import CheckpointError
from tests.checkpoint.convert.megatron.megatron import model_tensors, save
from tests.checkpoint.convert.megatron.samples import LLAMA, exported, save_ours


def _check_slices(place: Path, ours: Path, rows: int = 0) -> None:
    found = MegatronModel(place, are_tensors_verified=False)
    update = {"vocab_multiple": rows} if rows else {}
    with Reader(import_megatron(place, ours).path) as reader:
        for name, cut in parameters_of(found.model.model_copy(update=update)).items():
            whole = reader.whole(name)
            more = cut.shape[0] - whole.shape[0]
            whole = np.pad(whole, [(0, more), *[(0, 0)] * (whole.ndim - 1)]) if more else whole
            for degree in (1, 2, 4):
                parts = [found.read(name, cut.of(rank, degree)) for rank in range(degree)]
                for rank, part in enumerate(parts):
                    assert part.shape == cut.of(rank, degree).local_shape
                    if cut.dim is None:
                        assert np.array_equal(part, whole), name
                if cut.dim is not None and len(cut.parts) < 2:
                    assert np.array_equal(np.concatenate(parts, axis=cut.dim), whole), name
                elif cut.dim is not None:
                    split = np.cumsum([size // degree for size in cut.parts])[:-1]
                    fused = zip(*(np.split(part, split) for part in parts), strict=True)
                    assert np.array_equal(np.concatenate([row for each in fused for row in each]), whole), name


@pytest.mark.parametrize("degree", [1, 2, 4])
@pytest.mark.parametrize("version", [0, 1.0, 2.0, 3.0])
def test_slices_are_those_of_the_import_in_every_order(tmp_path, version, degree):
    save(tmp_path / "src", model_tensors(2, degree), pipe=1 + degree % 2, checkpoint_version=version or None)
    _check_slices(tmp_path / "src", tmp_path / "dst", rows=16)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("tensor", "pipe"), [(1, 2), (4, 1)])
def test_gated_slices_of_shared_keys_in_every_type(tmp_path, tensor, pipe, dtype):
    ours = save_ours(tmp_path / "ours", LLAMA)
    exported(ours, tmp_path / "theirs", tensor=tensor, pipe=pipe, dtype=dtype)
    found = MegatronModel(tmp_path / "theirs")
    assert found.model.num_kv_heads == 4
    _check_slices(tmp_path / "theirs", tmp_path / "back")


def _flip(file: Path, tensor: torch.Tensor) -> None:
    content = bytearray(file.read_bytes())
    at = content.index(tensor.numpy().tobytes())
    content[at + 5] ^= 16
    file.write_bytes(content)


def test_a_damaged_tensor_is_found_when_it_is_read(tmp_path):
    chunks = model_tensors(2, 2)
    path = save(tmp_path / "src", chunks, pipe=2, checkpoint_version=3.0)
    _flip(path / "mp_rank_01_001" / "model_optim_rng.pt", chunks[2][1]["mlp.dense_4h_to_h.weight"])
    with pytest.raises(CheckpointError, match="CRC-32 differs"):
        MegatronModel(path)
    found = MegatronModel(path, are_tensors_verified=False)
    for name, cut in parameters_of(found.model).items():
        if name != "layers.1.mlp.down.weight":
            found.read(name, cut)
    cut = parameters_of(found.model)["layers.1.mlp.down.weight"]
    found.read("layers.1.mlp.down.weight", cut.of(0, 2))  # of the other rank's file
    with pytest.raises(CheckpointError, match=r"mp_rank_01_001/model_optim_rng\.pt: .*dense_4h_to_h.*CRC-32 differs"):
        found.read("layers.1.mlp.down.weight", cut.of(1, 2))


def test_sums_are_of_the_zip(tmp_path):
    """The test above would pass without any sum if ``save`` wrote none."""
    path = save(tmp_path / "src", model_tensors(2, 1), checkpoint_version=3.0)
    with zipfile.ZipFile(path / "mp_rank_00" / "model_optim_rng.pt") as archive:
        assert all(each.CRC for each in archive.infolist() if "/data/" in each.filename)


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_slice_needs_no_whole_parameter(tmp_path, tensor):
    model = LLAMA.model_copy(update={"num_layers": 1, "ffn_hidden_size": 1 << 16})
    exported(save_ours(tmp_path / "ours", model), tmp_path / "theirs", tensor=tensor, dtype="bf16")
    found = MegatronModel(tmp_path / "theirs", are_tensors_verified=False)
    name = "layers.0.mlp.gate_up.weight"
    part = parameters_of(found.model)[name].of(1, 4)
    tracemalloc.start()
    try:
        read = found.read(name, part)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read.nbytes == 4 * part.count == 4 << 20
    assert peak < 1.1 * read.nbytes


def test_the_iteration_that_is_asked_for(tmp_path):
    for number, seed in ((40, 1), (80, 2)):
        save(tmp_path / "src", model_tensors(2, 1, seed=seed), name=f"iter_{number:07d}", checkpoint_version=3.0)
    assert MegatronModel(tmp_path / "src").source.path.name == "iter_0000080"
    assert MegatronModel(tmp_path / "src", step=40).source.path.name == "iter_0000040"
    assert MegatronModel(tmp_path / "src" / "iter_0000040", step=40).source.path.name == "iter_0000040"
    with pytest.raises(CheckpointError, match="no checkpoint of iteration 50; the newest are iter_0000040, iter_00"):
        MegatronModel(tmp_path / "src", step=50)
