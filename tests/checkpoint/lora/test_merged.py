"""Adapters and their base read as one checkpoint are the matrices that numpy makes of them, in every cut."""

from __future__ import annotations

import numpy as np
import pytest

from megads.checkpoint.convert.reshard import reshape, target_of
from megads.checkpoint.format.manifest import read_manifest
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.format.verify import verify
from megads.checkpoint.lora.merged import MergedReader, merged_manifest, merged_of, open_for_use
from megads.checkpoint.resume.compatibility import model_of
from megads.errors import CheckpointError
from tests.checkpoint.faked import fake
from tests.checkpoint.lora.made import ADAPTED, make_both
from tests.checkpoint.made import slice_of
from tests.models.shapes import GPT

MODELS = {"llama": ADAPTED, "gpt": GPT.model_copy(update={"lora_rank": 3, "lora_alpha": 2.0})}


@pytest.mark.parametrize("name", MODELS)
def test_every_slice_of_the_merged_weights(tmp_path, name):
    adapters, _, merged = make_both(tmp_path, MODELS[name])
    with open_for_use(adapters) as reader:
        assert isinstance(reader, MergedReader)
        assert reader.manifest.iteration == 50
        for parameter, wanted in merged.items():
            np.testing.assert_array_equal(reader.whole(parameter), wanted)
            for rank in range(4):
                cut = reader.cut(parameter).of(rank, 4)
                part = slice_of(wanted, cut).reshape(-1)
                first, count = len(part) // 3, len(part) // 2
                np.testing.assert_array_equal(
                    reader.read(parameter, "weight", cut, first, count), part[first : first + count]
                )
    assert model_of(adapters.path, reader.manifest).lora_rank == 0


def test_merged_weights_are_a_checkpoint_in_any_layout(tmp_path):
    adapters, _, merged = make_both(tmp_path)
    manifest, ref = merged_of(adapters)
    done = reshape(
        ref.path,
        manifest,
        tmp_path / "merged",
        target_of(manifest, tensor=4),
        weights_only=True,
        open_reader=lambda: MergedReader(adapters, ref, threads=1),
    )
    verify(done.path)
    with Reader(done.path) as reader:
        assert "lora_rank" not in reader.manifest.model
        assert reader.manifest.tensors.keys() == merged.keys()
        for parameter, wanted in merged.items():
            np.testing.assert_array_equal(reader.whole(parameter), wanted)


def test_adapters_are_reshaped_as_any_checkpoint(tmp_path):
    adapters, _, merged = make_both(tmp_path)
    done = reshape(adapters.path, adapters.manifest, tmp_path / "two", target_of(adapters.manifest, tensor=2, data=2))
    assert len(done.manifest.files) == 4
    with open_for_use(done) as reader:
        np.testing.assert_array_equal(reader.whole("layers.1.mlp.down.weight"), merged["layers.1.mlp.down.weight"])


def test_a_plain_checkpoint_is_read_as_it_is_and_not_merged(tmp_path):
    _, base, _ = make_both(tmp_path)
    with open_for_use(base) as reader:
        assert type(reader) is Reader
    with pytest.raises(CheckpointError, match="holds no adapters; it is a plain checkpoint already"):
        merged_of(base)


def test_the_losses_of_the_base_are_not_those_of_the_merged_weights(tmp_path):
    said, own = {"function": {"version": 1}, "source": "s"}, {"function": {"version": 1, "losses": [1.0]}}
    base = read_manifest(fake(tmp_path / "base", 1, about=said))
    bare, trained = (read_manifest(fake(tmp_path / name, 2, about=about)) for name, about in (("a", {}), ("b", own)))
    assert merged_manifest(bare, base).about == {"source": "s"}
    assert merged_manifest(trained, base).about == {"source": "s", **own}
