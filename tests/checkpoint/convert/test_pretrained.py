"""What another program pretrained is imported once, and again when its files change."""

from __future__ import annotations

import pytest
import torch

from megads.checkpoint.convert.pretrained import import_once, is_of_others
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.resume.compatibility import model_of
from megads.errors import CheckpointError
from tests.checkpoint.convert.huggingface.test_bert import theirs_in
from tests.checkpoint.convert.megatron.samples import exported, save_ours, weights
from tests.models import shapes

BERT = shapes.BERT.model_copy(update={"activation": "gelu_tanh"})


def test_megatrons_files_once(tmp_path):
    ours = save_ours(tmp_path / "ours", BERT)
    path = exported(ours, tmp_path / "theirs", tensor=2)
    assert is_of_others(tmp_path / "theirs")
    assert not is_of_others(tmp_path / "ours")
    said = []
    first = import_once(tmp_path / "theirs", tmp_path / "cache", 8, {}, said.append)
    assert said == [f"{tmp_path / 'theirs'}: imported as {first}"]
    found, (made,) = weights(ours), first.iterdir()
    assert all((weights(made)[name] == each).all() for name, each in found.items())
    assert import_once(tmp_path / "theirs", tmp_path / "cache", 8, {}, said.append) == first
    assert len(said) == 1
    file = path / "mp_rank_00" / "model_optim_rng.pt"
    torch.save(torch.load(file, weights_only=False), file)
    assert import_once(tmp_path / "theirs", tmp_path / "cache", 8, {}, said.append) != first
    # An import that was stopped leaves a folder, and no checkpoint in it.
    (first / "iter_0000000").rename(first / "gone")
    assert import_once(path.parent, tmp_path / "cache", 8, {}, said.append).is_dir()


def test_a_folder_that_cannot_be_read_is_left_to_who_says_so(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert not is_of_others(tmp_path / "a")
    assert not is_of_others(tmp_path / "none")


def test_what_the_files_lack_is_taken_from_the_settings(tmp_path):
    path = exported(save_ours(tmp_path / "ours", BERT), tmp_path / "theirs")
    file = path / "mp_rank_00" / "model_optim_rng.pt"
    content = torch.load(file, weights_only=False)
    torch.save({**content, "args": None}, file)
    with pytest.raises(CheckpointError, match="does not say its number of heads; state it with --num-heads"):
        import_once(path, tmp_path / "cache", 8, {})
    made = import_once(path, tmp_path / "cache", 8, {"num_heads": 8}) / "iter_0000000"
    with Reader(made) as reader:
        assert model_of(made, reader.manifest).num_heads == 8
    # Files that say it are right, and a setting is none.
    torch.save(content, file)
    made = import_once(path, tmp_path / "cache", 8, {"num_heads": 4}) / "iter_0000000"
    with Reader(made) as reader:
        assert model_of(made, reader.manifest).num_heads == BERT.num_heads


def test_a_folder_of_hugging_face(tmp_path):
    theirs_in(tmp_path / "theirs", "BertForPreTraining")
    config = tmp_path / "theirs" / "config.json"
    config.write_text(config.read_text().replace("BertForPreTraining", "BertForMaskedLM"))
    said = []
    made = import_once(tmp_path / "theirs", tmp_path / "cache", 8, {}, said.append)
    assert "the folder holds the pooler and the binary head: imported as BertForPreTraining" in said[0]
    assert said[1:] == [f"{tmp_path / 'theirs'}: imported as {made}"]
