"""Files that torch reads, written a tensor at a time."""

from __future__ import annotations

import zipfile

import torch

from tests.checkpoint.convert.megatron.samples import GPT2, exported, save_ours


def test_files_are_those_of_torch(tmp_path):
    """Whole zips whose numbers begin where the hardware likes it, also for mmap."""
    ours = save_ours(tmp_path / "ours", GPT2)
    path = exported(ours, tmp_path / "theirs") / "mp_rank_00" / "model_optim_rng.pt"
    plain = torch.load(path, weights_only=False)["model"]["language_model"]["encoder"]
    mapped = torch.load(path, weights_only=False, mmap=True)["model"]["language_model"]["encoder"]
    assert all(torch.equal(each, mapped[name]) for name, each in plain.items())
    assert all(each.data_ptr() % 64 == 0 for each in mapped.values())
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
