"""The four classes of BERT in and out: the same logits, the weights bit by bit, and no other model takes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.checkpoint.convert.reshard import reshape, target_of
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.resume.compatibility import check_model, model_of, shape_of
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.models.bert import BERT
from megads.parallel.documents import Documents, Lengths
from tests.checkpoint.convert.huggingface.models import exported, write_checkpoint
from tests.families.test_bert import FORMS
from tests.models.shapes import make_run

GRIDS = (Grid(), Grid(tensor=2), Grid(pipe=2, tensor=2, data=2), Grid(data=3))
SIZES = {
    **{"vocab_size": 53, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"intermediate_size": 48, "max_position_embeddings": 14, "initializer_range": 0.2},
}


def our_module(path: Path, model: ModelConfig) -> BERT:
    module = BERT(model.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0}), Groups(Grid(), 0))
    with Reader(path) as reader:
        module.load_state_dict({name: torch.from_numpy(reader.whole(name)) for name in reader.manifest.tensors})
    return module.eval()


def assert_same_outputs(ours: BERT, theirs: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    text, types = (torch.randint(most, (3, 12), generator=generator) for most in (53, 2))
    lengths = Lengths(torch.tensor([12, 5, 1]), 12)
    real = lengths.mask[:, 0, 0]
    with torch.no_grad():
        expected = theirs.eval()(text, attention_mask=real.long(), token_type_ids=types)
        found = ours(text, documents=Documents(lengths=lengths, types=types))
    if ours.config.binary_head:
        found, pairs = found
        torch.testing.assert_close(pairs, expected.seq_relationship_logits, rtol=2e-5, atol=2e-5)
    logits = expected.prediction_logits if ours.config.binary_head else expected.logits
    assert logits.abs().max() > 0.1
    torch.testing.assert_close(found[..., :53][real], logits[real], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", FORMS)
def test_outputs_of_what_is_exported_are_ours_and_the_layout_changes_no_byte(tmp_path, name):
    files = set()
    for i, grid in enumerate(GRIDS):
        path = write_checkpoint(tmp_path / f"ours-{i}", FORMS[name], grid, zero_stage=3 if grid.data == 3 else 0)
        done = exported(path, tmp_path / f"theirs-{i}", dtype="fp32")
        files.add((tmp_path / f"theirs-{i}" / "model.safetensors").read_bytes())
    assert len(files) == 1
    assert done.architecture == name
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "theirs-0", dtype=torch.float32)
    assert_same_outputs(our_module(path, FORMS[name]), theirs)


def theirs_in(folder: Path, name: str) -> torch.nn.Module:
    """Save a random model of transformers; no norm is one and no bias zero."""
    torch.manual_seed(0)
    config = (transformers.MegatronBertConfig if name.startswith("M") else transformers.BertConfig)(**SIZES)
    module = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    module.save_pretrained(folder)
    return module


@pytest.mark.parametrize("name", FORMS)
def test_what_is_imported_computes_the_same_and_comes_out_bit_by_bit(tmp_path, name):
    theirs = theirs_in(tmp_path / "theirs", name)
    done = import_folder(tmp_path / "theirs", tmp_path / "ours", vocab_multiple=8)
    with Reader(done.path) as reader:
        model = model_of(done.path, reader.manifest)
        assert reader.manifest.model == shape_of(model)
    assert (model.family, model.binary_head) == ("bert", name.endswith("PreTraining"))
    assert_same_outputs(our_module(done.path, model), theirs)
    exported(done.path, tmp_path / "again")
    before, after = (load_file(tmp_path / each / "model.safetensors") for each in ("theirs", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[each], after[each]) for each in before)
    first, second = (getattr(transformers, name).from_pretrained(tmp_path / each) for each in ("theirs", "again"))
    same = set(SIZES) | {"hidden_act", "type_vocab_size", "layer_norm_eps", "hidden_dropout_prob", "architectures"}
    assert all(getattr(first.config, each) == getattr(second.config, each) for each in same)


def test_a_head_that_transformers_computes_otherwise_is_said(tmp_path):
    """Megatron's layers with the tanh form of gelu: the encoder is the same, the head's gelu is the layers' there."""
    name = "MegatronBertForMaskedLM"
    model = FORMS[name].model_copy(update={"activation": "gelu_tanh"})
    path = write_checkpoint(tmp_path / "ours", model, Grid())
    done = exported(path, tmp_path / "theirs", dtype="fp32")
    assert "transformers' the tanh form of the layers" in done.note
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "theirs", dtype=torch.float32).eval()
    ours = our_module(path, model)
    text = torch.randint(53, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, found = theirs(text).logits, ours(text)[..., :53]
        assert 1e-5 < (expected - found).abs().max() / expected.abs().max() < 1e-2
        ours.lm_head.approximate = "tanh"
        torch.testing.assert_close(ours(text)[..., :53], expected, rtol=2e-5, atol=2e-5)
    assert exported(write_checkpoint(tmp_path / "exact", FORMS[name], Grid()), tmp_path / "same").note == ""


def test_the_encoder_alone_is_read_by_transformers(tmp_path):
    name = "BertForPreTraining"
    exported(write_checkpoint(tmp_path / "ours", FORMS[name], Grid()), tmp_path / "theirs", dtype="fp32")
    whole = getattr(transformers, name).from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    alone = transformers.BertModel.from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    for key, tensor in whole.bert.state_dict().items():
        assert torch.equal(tensor, alone.state_dict()[key]), key


def test_copies_in_old_files(tmp_path):
    """They are read if they are copies, and refused if they are not."""
    theirs = theirs_in(tmp_path / "theirs", "BertForPreTraining")
    file = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(file)
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    tensors["bert.embeddings.position_ids"] = torch.arange(14)[None]
    for old, new in (("gamma", "weight"), ("beta", "bias")):
        tensors[f"bert.embeddings.LayerNorm.{old}"] = tensors.pop(f"bert.embeddings.LayerNorm.{new}")
    save_file(tensors, file, {"format": "pt"})
    done = import_folder(tmp_path / "theirs", tmp_path / "ours", vocab_multiple=8)
    with Reader(done.path) as reader:
        assert_same_outputs(our_module(done.path, model_of(done.path, reader.manifest)), theirs)
    tensors["cls.predictions.decoder.bias"][3] += 1
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"has cls\.predictions\.decoder\.bias, which BertForPreTraining as"):
        import_folder(tmp_path / "theirs", tmp_path / "refused", vocab_multiple=8)


def _says(folder: Path, name: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [name]}))


@pytest.mark.parametrize("base", ["Bert", "MegatronBert"])
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_file_with_all_heads_whose_config_names_one(tmp_path, base, kind):
    """bert-base-uncased: BertForMaskedLM, with the pooler and the binary head, old names and tables."""
    theirs = theirs_in(tmp_path / "theirs", f"{base}ForPreTraining")
    _says(tmp_path / "theirs", f"{base}ForMaskedLM")
    file = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if ".LayerNorm." in name]:
        tensors[name.replace(".weight", ".gamma").replace(".bias", ".beta")] = tensors.pop(name)
    for name in ("position_ids", "token_type_ids"):
        tensors[f"bert.embeddings.{name}"] = torch.arange(14)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    if kind == "bin":
        file.unlink()
        torch.save(tensors, tmp_path / "theirs" / "pytorch_model.bin")
    else:
        save_file(tensors, file, {"format": "pt"})
    done = import_folder(tmp_path / "theirs", tmp_path / "ours", vocab_multiple=8)
    assert done.notes == (
        f"config.json says {base}ForMaskedLM, and the folder holds the pooler and the binary head: "
        f"imported as {base}ForPreTraining",
    )
    with Reader(done.path) as reader:
        assert_same_outputs(our_module(done.path, model_of(done.path, reader.manifest)), theirs)
    assert exported(done.path, tmp_path / "again").architecture == f"{base}ForPreTraining"


def test_a_file_without_the_head_that_its_config_names(tmp_path):
    theirs_in(tmp_path / "theirs", "BertForPreTraining")
    file = tmp_path / "theirs" / "model.safetensors"
    tensors = {name: each for name, each in load_file(file).items() if not name.startswith("cls.seq_relationship")}
    save_file(tensors, file, {"format": "pt"})
    done = import_folder(tmp_path / "theirs", tmp_path / "ours", vocab_multiple=8)
    assert done.notes == (
        "config.json says BertForPreTraining, and the folder holds no binary head: imported as BertForMaskedLM",
        "bert.pooler.dense is skipped: only the binary head would read it",
    )
    theirs = transformers.BertForMaskedLM.from_pretrained(tmp_path / "theirs", dtype=torch.float32)
    with Reader(done.path) as reader:
        assert_same_outputs(our_module(done.path, model_of(done.path, reader.manifest)), theirs)
    # The head without its pooler is half a head: something is missing.
    broken = {name: each for name, each in tensors.items() if "pooler" not in name}
    save_file({**broken, "cls.seq_relationship.weight": torch.zeros(2, 32)}, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"has no (bert\.pooler\.dense\.weight|cls\.seq_relationship\.bias)"):
        import_folder(tmp_path / "theirs", tmp_path / "refused", vocab_multiple=8)


def test_a_decoder_takes_no_encoders_checkpoint(tmp_path):
    theirs_in(tmp_path / "theirs", "MegatronBertForMaskedLM")
    done = import_folder(tmp_path / "theirs", tmp_path / "ours", vocab_multiple=8)
    with Reader(done.path) as reader:
        model = model_of(done.path, reader.manifest)
        check_model(done.path, reader.manifest, make_run(model))
        gpt = make_run(model.model_copy(update={"family": "gpt"}))
        told = "the checkpoint's model is an encoder, bert, this run's is no encoder; set MODEL_FAMILY, or start with"
        with pytest.raises(CheckpointError, match=told):
            check_model(done.path, reader.manifest, gpt)


def test_what_is_resharded_has_all_tensors(tmp_path):
    theirs = theirs_in(tmp_path / "theirs", "BertForPreTraining")
    done = import_folder(tmp_path / "theirs", tmp_path / "ours", vocab_multiple=8)
    with Reader(done.path) as reader:
        model = model_of(done.path, reader.manifest)
        manifest = reader.manifest
    made = reshape(done.path, manifest, tmp_path / "cut", target_of(manifest, tensor=2, pipeline=2))
    assert made.manifest.layout["tensor"] == 2
    assert_same_outputs(our_module(made.path, model), theirs)


@pytest.mark.parametrize("pooler", [True, False])
@pytest.mark.parametrize("kind", ["Bert", "MegatronBert"])
def test_a_model_without_heads_gets_new_ones(tmp_path, kind, pooler):
    config = getattr(transformers, f"{kind}Config")(**SIZES)
    theirs = getattr(transformers, f"{kind}Model")(config, add_pooling_layer=pooler).eval()
    theirs.save_pretrained(tmp_path / "hf")
    done = [import_folder(tmp_path / "hf", tmp_path / name) for name in ("a", "b")]
    assert done[0].notes == (
        "the folder holds no heads of pretraining: new ones are drawn, which finetuning does not read",
    )
    assert done[0].description.model.binary_head == pooler
    ours, again = (our_module(each.path, each.description.model) for each in done)
    assert all(map(torch.equal, ours.state_dict().values(), again.state_dict().values()))
    # The encoder is theirs: with their heads, put where ours are, a whole model computes the same.
    whole = getattr(transformers, f"{kind}For{'PreTraining' if pooler else 'MaskedLM'}")(config)
    whole.bert.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        state = ours.state_dict()
        head = whole.cls.predictions
        for name, tensor in (
            ("lm_head.dense.weight", head.transform.dense.weight),
            ("lm_head.dense.bias", head.transform.dense.bias),
            ("lm_head.norm.weight", head.transform.LayerNorm.weight),
            ("lm_head.norm.bias", head.transform.LayerNorm.bias),
            *([("binary_head.weight", whole.cls.seq_relationship.weight)] if pooler else []),
            *([("binary_head.bias", whole.cls.seq_relationship.bias)] if pooler else []),
        ):
            is_matrix, found = tensor.ndim == 2, state[name]
            if is_matrix:
                assert 0.5 < found.std() / config.initializer_range < 2
            else:
                assert found.eq(float(name == "lm_head.norm.weight")).all()
            tensor.copy_(found)
    assert_same_outputs(ours, whole)
