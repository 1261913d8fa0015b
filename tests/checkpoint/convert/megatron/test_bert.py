"""Megatron's BERT in and out, in its legacy files, and what they compute by definition."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.resume.compatibility import model_of
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.models.bert import BERT
from megads.parallel.documents import Documents, Lengths
from tests.checkpoint.convert.megatron.samples import exported, save_ours, weights
from tests.models import shapes
from tests.models.test_bert import by_definition

OURS = shapes.BERT.model_copy(update={"activation": "gelu_tanh", "num_layers": 4})
TOKENS_ONLY = OURS.model_copy(update={"binary_head": False, "token_types": 0})
HIDDEN, HEADS, WIDTH, INNER, ROWS, PLACES = 32, 8, 4, 48, 56, 12


class _Files:
    """Every rank's file of a model with two layers, by Megatron's names, and the whole by ours."""

    def __init__(self, degree: int):
        self.draw = torch.Generator().manual_seed(5)
        self.files: list[dict[str, Any]] = [{} for _ in range(degree)]
        self.whole: dict[str, Tensor] = {}
        words = ("language_model", "embedding", "word_embeddings")
        self.both("embedding.weight", "weight", self.numbers(ROWS, HIDDEN), 0, *words)
        for ours, theirs, rows in (("positions", "position", PLACES), ("token_types", "tokentype", 2)):
            folders = ("language_model", "embedding", f"{theirs}_embeddings")
            self.both(f"{ours}.weight", "weight", self.numbers(rows, HIDDEN), None, *folders)
        self.layer(0)
        self.layer(1)
        self.norm("final_norm", "final_layernorm.", "language_model", "encoder")
        self.norm("lm_head.norm", "layernorm.", "lm_head")
        for ours, theirs, rows, folders in (
            ("lm_head.dense", "dense.", HIDDEN, ("lm_head",)),
            ("pooler.dense", "dense.", HIDDEN, ("language_model", "pooler")),
            ("binary_head", "", 2, ("binary_head",)),
        ):
            self.both(f"{ours}.weight", f"{theirs}weight", self.numbers(rows, HIDDEN), None, *folders)
            self.both(f"{ours}.bias", f"{theirs}bias", self.numbers(rows), None, *folders)
        self.both("lm_head.bias", "bias", self.numbers(ROWS), 0, "lm_head")

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.draw) * 0.3

    def put(self, name: str, tensor: Tensor, dim: int | None, *folders: str) -> None:
        for rank, file in enumerate(self.files):
            inner = file
            for folder in folders:
                inner = inner.setdefault(folder, {})
            inner[name] = (tensor if dim is None else tensor.chunk(len(self.files), dim)[rank]).clone()

    def both(self, ours: str, theirs: str, tensor: Tensor, dim: int | None, *folders: str) -> None:
        self.whole[ours] = tensor
        self.put(theirs, tensor, dim, *folders)

    def norm(self, ours: str, theirs: str, *folders: str) -> None:
        self.both(f"{ours}.weight", f"{theirs}weight", self.numbers(HIDDEN) + 1, None, *folders)
        self.both(f"{ours}.bias", f"{theirs}bias", self.numbers(HIDDEN), None, *folders)

    def layer(self, n: int) -> None:
        encoder = ("language_model", "encoder")
        for kind, shape in (("weight", (HEADS, 3, WIDTH, HIDDEN)), ("bias", (HEADS, 3, WIDTH))):
            # Megatron's rows: q, k and v of the first head, then those of the second.
            heads = self.numbers(*shape)
            self.whole[f"layers.{n}.attention.qkv.{kind}"] = heads.transpose(0, 1).reshape(-1, *shape[3:])
            self.put(f"layers.{n}.self_attention.query_key_value.{kind}", heads.reshape(-1, *shape[3:]), 0, *encoder)
        for ours, theirs, rows, columns, dim in (
            ("attention.out", "self_attention.dense", HIDDEN, HIDDEN, 1),
            ("mlp.up", "mlp.dense_h_to_4h", INNER, HIDDEN, 0),
            ("mlp.down", "mlp.dense_4h_to_h", HIDDEN, INNER, 1),
        ):
            name = f"layers.{n}.{theirs}"
            self.both(f"layers.{n}.{ours}.weight", f"{name}.weight", self.numbers(rows, columns), dim, *encoder)
            self.both(f"layers.{n}.{ours}.bias", f"{name}.bias", self.numbers(rows), None if dim else 0, *encoder)
        for ours, theirs in (("input_norm", "input_layernorm"), ("post_norm", "post_attention_layernorm")):
            self.norm(f"layers.{n}.{ours}", f"layers.{n}.{theirs}.", *encoder)


def _save(folder: Path, files: list[dict[str, Any]]) -> None:
    args = argparse.Namespace(
        **{"num_layers": 2, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "ffn_hidden_size": INNER},
        **{"max_position_embeddings": PLACES, "seq_length": PLACES, "layernorm_epsilon": 1e-5, "vocab_size": 53},
        **{"make_vocab_size_divisible_by": 8, "padded_vocab_size": ROWS, "bias_gelu_fusion": True},
        **{"tensor_model_parallel_size": len(files), "pipeline_model_parallel_size": 1, "params_dtype": torch.float32},
    )
    for rank, model in enumerate(files):
        path = folder / "iter_0000040" / f"mp_rank_{rank:02d}"
        path.mkdir(parents=True)
        content = {"args": args, "checkpoint_version": 3.0, "iteration": 40, "model": model}
        torch.save(content, path / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("40")


def _batch() -> tuple[Tensor, Documents]:
    draw = torch.Generator().manual_seed(3)
    text, types = (torch.randint(most, (3, PLACES), generator=draw) for most in (53, 2))
    return text, Documents(lengths=Lengths(torch.tensor([12, 7, 2]), PLACES), types=types)


def _module(path: Path, model: ModelConfig) -> BERT:
    module = BERT(model, Groups(Grid(), 0))
    module.load_state_dict({name: torch.from_numpy(each.copy()) for name, each in weights(path).items()})
    return module.double().eval()


@pytest.mark.parametrize("degree", [1, 2])
def test_what_is_imported_computes_what_its_files_say(tmp_path, degree):
    made = _Files(degree)
    _save(tmp_path / "src", made.files)
    done = import_megatron(tmp_path / "src", tmp_path / "dst")
    assert (done.model.family, done.model.token_types, done.model.binary_head) == ("bert", 2, True)
    assert (done.model.activation, done.model.vocab_size, done.model.tied_embeddings) == ("gelu_tanh", 53, True)
    text, documents = _batch()
    real = documents.lengths.mask[:, 0, 0]
    wide = {name: tensor.double() for name, tensor in made.whole.items()}
    logits, pairs = by_definition(done.model, wide, text, documents)
    found, found_pairs = _module(done.path, done.model)(text, documents=documents)
    torch.testing.assert_close(found[real][:, :53], logits[real][:, :53], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found_pairs, pairs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("model", [OURS, TOKENS_ONLY], ids=["pairs", "tokens"])
@pytest.mark.parametrize(
    ("tensor", "pipe", "style"),
    [(1, 1, "legacy"), (2, 2, "legacy"), (4, 1, "legacy"), (1, 1, "core"), (2, 2, "core"), (2, 4, "core-te")],
)
def test_exporting_and_importing_gives_the_same_bits(tmp_path, model, tensor, pipe, style):
    path = save_ours(tmp_path / "ours", model)
    exported(path, tmp_path / "theirs", tensor=tensor, pipe=pipe, style=style)
    done = import_megatron(tmp_path / "theirs", tmp_path / "again")
    assert done.notes == ()
    before, after = weights(path), weights(done.path)
    assert before.keys() == after.keys()
    for name, numbers in before.items():
        real = 53 if name in ("embedding.weight", "lm_head.bias") else len(numbers)
        assert (after[name][:real] == numbers[:real]).all(), name
    with Reader(done.path) as reader:
        again = model_of(done.path, reader.manifest)
    same = ("family", "token_types", "binary_head", "activation", "num_layers", "norm_epsilon", "max_positions")
    assert [getattr(again, each) for each in same] == [getattr(model, each) for each in same]


def test_the_files_lie_as_megatron_reads_them(tmp_path):
    exported(save_ours(tmp_path / "ours", OURS), tmp_path / "theirs", tensor=2, pipe=2)
    release = tmp_path / "theirs" / "release"
    first, last = (
        torch.load(release / f"mp_rank_01_{stage:03d}/model_optim_rng.pt", weights_only=False) for stage in (0, 1)
    )
    assert set(first["model"]) == {"language_model"}
    assert set(first["model"]["language_model"]["embedding"]) == {
        "word_embeddings",
        "position_embeddings",
        "tokentype_embeddings",
    }
    model = last["model"]
    assert set(model) == {"language_model", "lm_head", "binary_head", "word_embeddings_for_head"}
    assert set(model["lm_head"]) == {"dense.weight", "dense.bias", "layernorm.weight", "layernorm.bias", "bias"}
    assert set(model["language_model"]["pooler"]) == {"dense.weight", "dense.bias"}
    assert {name: tuple(each.shape) for name, each in model["binary_head"].items()} == {"weight": (2, 32), "bias": (2,)}
    assert model["lm_head"]["bias"].shape == model["word_embeddings_for_head"]["weight"].shape[:1]
    assert last["args"].bert_binary_head


@pytest.mark.parametrize(
    ("model", "target", "told"),
    [
        (shapes.BERT_ORIGINAL, {}, "export to Megatron has no norm_position=behind_sum"),
    ],
)
def test_what_megatron_does_not_have_is_refused(tmp_path, model, target, told):
    with pytest.raises(CheckpointError, match=told):
        exported(save_ours(tmp_path / "ours", model), tmp_path / "theirs", **target)
