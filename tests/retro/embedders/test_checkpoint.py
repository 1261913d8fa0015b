"""A BERT of megads and of transformers embed texts alike, and as a plain loop over transformers' model does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.errors import ConfigError, DataError, MegadsError
from megads.retro.embedders.checkpoint import CheckpointBert
from megads.retro.embedders.huggingface import HuggingFaceBert

LETTERS = "abcdefghij"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{each}" for each in LETTERS), "the", "cat"]
TEXTS = ["the cat", "", "abc", "a b c d e f g h i j a b c d e f g h i j", "  ", "the the cat abcdefg"]
LONGEST = 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """Return the folders of a random model: transformers' and ours."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(folder / "theirs")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder / "theirs")
    import_folder(folder / "theirs", folder / "ours", vocab_multiple=8)
    return folder / "theirs", folder / "ours"


def expected(folder: Path) -> np.ndarray:
    """Return the mean of the last hidden states of each text's own tokens, one text at a time."""
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    rows = []
    for text in TEXTS:
        words = text.split()
        ids = [WORDS.index(piece) for word in words for piece in _pieces(word)][: LONGEST - 2]
        row = np.zeros(16, "f4")
        if ids:
            with torch.no_grad():
                states = model(torch.tensor([[2, *ids, 3]])).last_hidden_state[0]
            row = states[1:-1].double().mean(dim=0).float().numpy()
        rows.append(row)
    return np.stack(rows)


def _pieces(word: str) -> list[str]:
    return [word] if word in WORDS else [word[0], *(f"##{each}" for each in word[1:])]


def test_both_equal_one_text_at_a_time(folders):
    theirs, ours = folders
    wanted = expected(theirs)
    for made in [
        kind(folder, LONGEST, n)
        for kind, folder in ((HuggingFaceBert, theirs), (CheckpointBert, ours))
        for n in (1, 4, 128)
    ]:
        calls: list[int] = []
        found = made.embed(TEXTS, calls.append)
        assert (found.dtype, found.shape, made.dim, sum(calls)) == (np.float32, (6, 16), 16, 6)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)
        assert not found[[1, 4]].any()
        assert found.tobytes() == made.embed(TEXTS).tobytes()
        assert "16 numbers" in made.summary
        assert made.embed([]).shape == (0, 16)


def test_what_is_no_bert_is_one_line(tmp_path, folders):
    with pytest.raises(DataError, match=r"has no config\.json; name a folder of Hugging Face's BERT"):
        HuggingFaceBert(tmp_path, 8, 8)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DataError, match="--retro-bert-model "):
        HuggingFaceBert(tmp_path, 8, 8)
    with pytest.raises(MegadsError):
        CheckpointBert(tmp_path / "none", 8, 8)


def test_a_decoder_is_refused(tmp_path):
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=32, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="gpt"):
        CheckpointBert(tmp_path, 8, 8)
