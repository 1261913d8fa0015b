"""T5ForConditionalGeneration in and out: the same logits, and the weights bit by bit."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5ForConditionalGeneration

from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.resume.compatibility import model_of
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.models.t5 import T5
from megads.parallel.documents import Documents, Lengths
from tests.checkpoint.convert.huggingface.models import exported, write_checkpoint
from tests.models.shapes import T5S

KINDS = ("t5-v1.1", "t5-v1.0")
GRIDS = (Grid(), Grid(tensor=2), Grid(pipe=2, tensor=2, data=2), Grid(data=3))
_SIZES = {"vocab_size": 53, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3}
_SIZES |= {"num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
THEIRS = {
    "t5-v1.0": T5Config(**_SIZES),
    "t5-v1.1": T5Config(**_SIZES, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
}


def our_module(path: Path, model: ModelConfig) -> T5:
    module = T5(model.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0}), Groups(Grid(), 0))
    with Reader(path) as reader:
        module.load_state_dict({name: torch.from_numpy(reader.whole(name)) for name in reader.manifest.tensors})
    return module.eval()


def assert_same_logits(ours: T5, theirs: T5ForConditionalGeneration) -> None:
    generator = torch.Generator().manual_seed(1)
    text, start = (torch.randint(53, (3, length), generator=generator) for length in (14, 9))
    lengths = torch.tensor([14, 5, 1])
    real = (torch.arange(14) < lengths[:, None]).long()
    with torch.no_grad():
        expected = theirs.eval()(input_ids=text, attention_mask=real, decoder_input_ids=start).logits
        documents = Documents(lengths=Lengths(lengths, 14), encoder_tokens=14)
        found = ours(torch.cat([text, start], dim=1), documents=documents)[..., :53]
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_of_what_is_exported_are_ours_and_the_layout_changes_no_byte(tmp_path, kind):
    files = set()
    for i, grid in enumerate(GRIDS):
        path = write_checkpoint(tmp_path / f"ours-{i}", T5S[kind], grid, zero_stage=3 if grid.data == 3 else 0)
        done = exported(path, tmp_path / f"theirs-{i}", dtype="fp32")
        files.add((tmp_path / f"theirs-{i}" / "model.safetensors").read_bytes())
    assert len(files) == 1
    assert done.architecture == "T5ForConditionalGeneration"
    theirs = T5ForConditionalGeneration.from_pretrained(tmp_path / "theirs-0", dtype=torch.float32)
    assert_same_logits(our_module(path, T5S[kind]), theirs)


def theirs_in(folder: Path, kind: str) -> T5ForConditionalGeneration:
    """Save a random model of transformers; no norm is one, and version 1.1 has an output layer of its own."""
    torch.manual_seed(0)
    module = T5ForConditionalGeneration(copy.deepcopy(THEIRS[kind]))
    with torch.no_grad():
        if kind == "t5-v1.1":
            module.lm_head.weight = torch.nn.Parameter(torch.randn_like(module.lm_head.weight) / 4)
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    module.save_pretrained(folder)
    return module


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_imported_computes_the_same_and_comes_out_bit_by_bit(tmp_path, kind):
    theirs = theirs_in(tmp_path / "theirs", kind)
    done = import_folder(tmp_path / "theirs", tmp_path / "ours", vocab_multiple=8)
    with Reader(done.path) as reader:
        model = model_of(done.path, reader.manifest)
    assert (model.family, model.decoder_layers, model.tied_embeddings) == ("t5", 3, kind == "t5-v1.0")
    assert_same_logits(our_module(done.path, model), theirs)
    exported(done.path, tmp_path / "again")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = T5ForConditionalGeneration.from_pretrained(tmp_path / "again")
    assert again.config.scale_decoder_outputs == (kind == "t5-v1.0")
    assert again.config.decoder_start_token_id == 0


def test_copies_of_the_embedding_in_old_files(tmp_path):
    """They are read if they are copies, and refused if they are not."""
    theirs_in(tmp_path / "theirs", "t5-v1.0")
    file = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(file)
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors |= {f"{part}.embed_tokens.weight": tensors["shared.weight"].clone() for part in ("encoder", "decoder")}
    tensors[unread] = torch.zeros(8, 4)
    save_file(tensors, file, {"format": "pt"})
    import_folder(tmp_path / "theirs", tmp_path / "ours", vocab_multiple=8)
    tensors["decoder.embed_tokens.weight"] += 1
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"decoder\.embed_tokens\.weight is not shared\.weight, and the"):
        import_folder(tmp_path / "theirs", tmp_path / "refused", vocab_multiple=8)


def test_megatrons_form_is_no_class_of_transformers(tmp_path):
    path = write_checkpoint(tmp_path / "ours", T5S["t5"], Grid())
    with pytest.raises(CheckpointError, match="no class of transformers computes this model: T5ForConditional"):
        exported(path, tmp_path / "theirs")
