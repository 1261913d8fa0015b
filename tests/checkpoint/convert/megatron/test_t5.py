"""Megatron's T5 in and out: its legacy files of every rank and version, and the names of its core."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.models.t5 import T5
from megads.parallel.documents import Documents, Lengths
from tests.checkpoint.convert.megatron.samples import exported, model_settings, save_ours, weights
from tests.models import shapes
from tests.models.t5_reference import logits_of

OURS = shapes.T5.model_copy(update={"num_layers": 4, "decoder_layers": 2, "vocab_multiple": 8})
HIDDEN, HEADS, WIDTH, INNER, ROWS, PLACES = 32, 8, 4, 48, 56, 16
ENCODER, DECODER = 4, 2


class _Files:
    """A model by our names, and every rank's file of it by Megatron's, written down from the layout of its rows."""

    def __init__(self, degree: int, version: float, stages: tuple[tuple[range, range], ...]):
        self.degree, self.version = degree, version
        draw = torch.Generator().manual_seed(11)
        self.draw = lambda *shape: torch.randn(*shape, generator=draw) * 0.3
        self.whole: dict[str, Tensor] = {}
        self.embedding = {name: self.draw(rows, HIDDEN) for name, rows in (("word", ROWS), ("position", PLACES))}
        self.whole |= {"embedding.weight": self.embedding["word"], "positions.weight": self.embedding["position"]}
        self.whole["output_bias.bias"] = self.bias = self.draw(ROWS)
        self.layers = [self.layer(n) for n in range(ENCODER + DECODER)]
        last = (
            self.norm(f"layers.{ENCODER - 1}.encoder_norm", "final_layernorm"),
            self.norm("final_norm", "final_layernorm"),
        )
        self.files = {
            (rank, number): self.file(rank, number, stages, last)
            for number in range(len(stages))
            for rank in range(degree)
        }

    def norm(self, ours: str, theirs: str) -> dict[str, tuple[Tensor, ...]]:
        return self.linear(ours, theirs, [self.draw(HIDDEN) + 1] * self.degree, [self.draw(HIDDEN)] * self.degree)

    def linear(self, ours: str, theirs: str, weight: Any, bias: Any) -> dict[str, tuple[Tensor, ...]]:
        """Add replicated tensors to the whole."""
        self.whole[f"{ours}.weight"], self.whole[f"{ours}.bias"] = weight[0], bias[0]
        return {f"{theirs}.weight": tuple(weight), f"{theirs}.bias": tuple(bias)}

    def column(self, ours: str, theirs: str, parts: int, rows: int) -> dict[str, tuple[Tensor, ...]]:
        """A matrix of ``parts`` (queries, keys, values) fused head by head as the version has them; 1: plain."""
        found = {}
        for end, tail in (("weight", (HIDDEN,)), ("bias", ())):
            if parts == 1:
                whole = self.draw(rows, *tail)
                self.whole[f"{ours}.{end}"], shards = whole, whole.chunk(self.degree)
            else:
                each = [self.draw(HEADS, WIDTH, *tail) for _ in range(parts)]
                self.whole[f"{ours}.{end}"] = torch.cat([part.flatten(0, 1) for part in each])
                shards = [self.fused([part.chunk(self.degree)[rank] for part in each]) for rank in range(self.degree)]
            found[f"{theirs}.{end}"] = tuple(shards)
        return found

    def fused(self, parts: list[Tensor]) -> Tensor:
        """Rows of a rank: its heads, their parts, their channels, in the order of the version."""
        rows = []
        heads = range(parts[0].shape[0])
        if self.version == 0:
            rows = [part[head, at] for part in parts for head in heads for at in range(WIDTH)]
        elif self.version == 1:
            rows = [part[head, at] for head in heads for at in range(WIDTH) for part in parts]
        else:
            rows = [part[head, at] for head in heads for part in parts for at in range(WIDTH)]
        return torch.stack(rows)

    def row(self, ours: str, theirs: str, inner: int) -> dict[str, tuple[Tensor, ...]]:
        weight, bias = self.draw(HIDDEN, inner), self.draw(HIDDEN)
        self.whole[f"{ours}.weight"], self.whole[f"{ours}.bias"] = weight, bias
        return {f"{theirs}.weight": weight.chunk(self.degree, 1), f"{theirs}.bias": (bias,) * self.degree}

    def layer(self, n: int) -> dict[str, tuple[Tensor, ...]]:
        at, is_decoder = f"layers.{n}.", n >= ENCODER
        found = {
            **self.norm(f"{at}input_norm", "input_layernorm"),
            **self.column(f"{at}attention.qkv", "self_attention.query_key_value", 3, 0),
            **self.row(f"{at}attention.out", "self_attention.dense", HIDDEN),
            **self.column(f"{at}mlp.up", "mlp.dense_h_to_4h", 1, INNER),
            **self.row(f"{at}mlp.down", "mlp.dense_4h_to_h", INNER),
        }
        if not is_decoder:
            return {**found, **self.norm(f"{at}post_norm", "post_attention_layernorm")}
        return {
            **found,
            **self.norm(f"{at}cross_norm", "post_attention_layernorm"),
            **self.column(f"{at}cross_attention.q", "inter_attention.query", 1, HIDDEN),
            **self.column(f"{at}cross_attention.kv", "inter_attention.key_value", 2, 0),
            **self.row(f"{at}cross_attention.out", "inter_attention.dense", HIDDEN),
            **self.norm(f"{at}post_norm", "post_inter_attention_layernorm"),
        }

    def file(self, rank: int, number: int, stages: Any, last: Any) -> dict[str, Any]:
        """Return ``model`` of a rank's file."""
        language: dict[str, Any] = {}
        model: dict[str, Any] = {"language_model": language}
        starts = [next(n for n, stage in enumerate(stages) if stage[stack]) for stack in range(2)]
        if number in starts:
            tables = {"word": self.embedding["word"].chunk(self.degree)[rank], "position": self.embedding["position"]}
            language["embedding"] = {f"{name}_embeddings": {"weight": each.clone()} for name, each in tables.items()}
        for stack, name in enumerate(("encoder", "decoder")):
            mine = stages[number][stack]
            if not mine:
                continue
            part = language[name] = {}
            for at, n in enumerate(mine):
                layer = self.layers[n + stack * ENCODER]
                part |= {f"layers.{at}.{key}": each[rank].clone() for key, each in layer.items()}
            if mine.stop == (ENCODER, DECODER)[stack]:
                part |= {key: each[rank].clone() for key, each in last[stack].items()}
        if number == len(stages) - 1:
            model["lm_head"] = {"bias": self.bias.chunk(self.degree)[rank].clone()}
            if number not in starts:
                model["word_embeddings_for_head"] = {"weight": self.embedding["word"].chunk(self.degree)[rank].clone()}
        return model

    def save(self, folder: Path, **changed: Any) -> Path:
        pipe = 1 + max(number for _, number in self.files)
        said = {
            **{"num_layers": ENCODER, "encoder_num_layers": ENCODER, "decoder_num_layers": DECODER},
            **{
                "hidden_size": HIDDEN,
                "num_attention_heads": HEADS,
                "ffn_hidden_size": INNER,
                "layernorm_epsilon": 1e-5,
            },
            **{"max_position_embeddings": PLACES, "encoder_seq_length": 16, "decoder_seq_length": 8, "seq_length": 16},
            **{"make_vocab_size_divisible_by": 8 // self.degree, "padded_vocab_size": ROWS, "bias_gelu_fusion": True},
            **{"tensor_model_parallel_size": self.degree, "pipeline_model_parallel_size": pipe},
            **{"params_dtype": torch.float32, **changed},
        }
        args = argparse.Namespace(**said)
        for (rank, number), model in self.files.items():
            path = folder / "iter_0000040" / (f"mp_rank_{rank:02d}" + (f"_{number:03d}" if pipe > 1 else ""))
            path.mkdir(parents=True)
            content = {"args": args, "iteration": 40, "model": model}
            # Version 0 is that of files without the key.
            content |= {"checkpoint_version": self.version} if self.version else {}
            torch.save(content, path / "model_optim_rng.pt")
        (folder / "latest_checkpointed_iteration.txt").write_text("40")
        return folder


ONE = ((range(4), range(2)),)
SPLIT = ((range(2), range(0)), (range(2, 4), range(0)), (range(0), range(1)), (range(0), range(1, 2)))
TWO = ((range(4), range(0)), (range(0), range(2)))


def logits(model: ModelConfig, found: dict[str, np.ndarray]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return our logits of a batch, and the batch."""
    draw = torch.Generator().manual_seed(3)
    text, start = (torch.randint(model.vocab_size, (3, size), generator=draw) for size in (16, 8))
    lengths = torch.tensor([16, 9, 2])
    module = T5(model, Groups(Grid(), 0))
    module.load_state_dict({name: torch.from_numpy(each.copy()) for name, each in found.items()})
    with torch.no_grad():
        documents = Documents(lengths=Lengths(lengths, 16))
        return module.double().eval()(torch.cat([text, start], dim=1), documents=documents), text, start, lengths


@pytest.mark.parametrize(
    ("degree", "version", "stages"),
    [(1, 3.0, ONE), (2, 3.0, SPLIT), (4, 2.0, TWO), (2, 1.0, ONE), (1, 0, TWO), (4, 0, SPLIT)],
    ids=lambda each: f"pp{len(each)}" if isinstance(each, tuple) else str(each),
)
def test_what_is_imported_computes_what_its_files_say(tmp_path, degree, version, stages):
    made = _Files(degree, version, stages)
    done = import_megatron(made.save(tmp_path / "src", vocab_size=53), tmp_path / "dst")
    assert done.notes == ()
    model = done.model
    assert (model.family, model.num_layers, model.decoder_layers, model.vocab_size) == ("t5", 4, 2, 53)
    assert (model.seq_length, model.decoder_seq_length, model.activation) == (16, 8, "gelu_tanh")
    ours, text, start, lengths = logits(model, weights(done.path))
    wide = {name: each.double() for name, each in made.whole.items()}
    expected = logits_of(wide, text, start, lengths, encoder=ENCODER, decoder=DECODER, heads=HEADS)
    torch.testing.assert_close(ours[..., :53], expected[..., :53], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("target", "split"),
    [
        ({}, 0),
        ({"tensor": 2, "pipe": 2}, 1),
        ({"tensor": 4, "pipe": 4, "split_rank": 2}, 2),
        ({"tensor": 2, "pipe": 6}, 4),
        ({"style": "core", "tensor": 2}, 0),
        ({"style": "core-te"}, 0),
    ],
    ids=str,
)
def test_exporting_and_importing_gives_the_same_bits(tmp_path, target, split):
    path = save_ours(tmp_path / "ours", OURS)
    theirs = exported(path, tmp_path / "theirs", **target)
    done = import_megatron(tmp_path / "theirs", tmp_path / "again")
    assert done.notes == ()
    before, after = weights(path), weights(done.path)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert model_settings(done.path) == model_settings(path)
    assert (done.model.family, done.model.seq_length, done.model.decoder_seq_length) == ("t5", 16, 8)
    first = torch.load(next(theirs.glob("mp_rank_00*")) / "model_optim_rng.pt", weights_only=False)
    assert first["args"].pipeline_model_parallel_split_rank == (split or None)


def test_an_import_that_is_exported_again_is_the_same_file(tmp_path):
    """Every tensor of every rank, by name, for the ranks that it came from."""
    made = _Files(2, 3.0, SPLIT)
    done = import_megatron(made.save(tmp_path / "src", vocab_size=53), tmp_path / "ours")
    again = exported(done.path, tmp_path / "again", tensor=2, pipe=4, split_rank=2)
    for (rank, number), model in made.files.items():
        file = again / f"mp_rank_{rank:02d}_{number:03d}" / "model_optim_rng.pt"
        before, after = _flat(model), _flat(torch.load(file, weights_only=False)["model"])
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            real = max(0, 53 - rank * 28) if name.endswith(("word_embeddings.weight", "lm_head.bias")) else len(tensor)
            assert torch.equal(tensor[:real], after[name][:real]), name


def _flat(nested: Any, prefix: str = "") -> dict[str, Tensor]:
    if isinstance(nested, Tensor):
        return {prefix: nested}
    return {name: each for key in nested for name, each in _flat(nested[key], f"{prefix}.{key}").items()}


def test_copies_that_differ_are_reported(tmp_path):
    made = _Files(1, 3.0, TWO)
    made.files[0, 1]["language_model"]["embedding"]["position_embeddings"]["weight"] += 1
    done = import_megatron(made.save(tmp_path / "src", vocab_size=53), tmp_path / "dst")
    name = "language_model.embedding.position_embeddings.weight"
    assert [note.partition(": ")[2] for note in done.notes] == [
        f"{name} of its last stage differs from {name} of another one, which was taken"
    ]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"decoder_num_layers": 3}, "its arguments say decoder_num_layers=3, its files hold 2"),
        ({"position_embedding_type": "relative"}, "has relative positions; megads has rotary and learned ones"),
        ({"hidden_size": 64}, "its arguments say hidden_size=64, its files hold 32"),
    ],
)
def test_files_that_are_of_another_model(tmp_path, changed, told):
    made = _Files(1, 3.0, ONE).save(tmp_path / "src", **changed)
    with pytest.raises(CheckpointError, match=told):
        import_megatron(made, tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


def test_core_in_stages_and_relative_positions_are_refused(tmp_path):
    path = exported(save_ours(tmp_path / "ours", OURS), tmp_path / "theirs", style="core")
    file = path / "mp_rank_00" / "model_optim_rng.pt"
    content = torch.load(file, weights_only=False)
    for number in range(2):
        (path / f"mp_rank_00_00{number}").mkdir()
        torch.save(content, path / f"mp_rank_00_00{number}" / "model_optim_rng.pt")
    file.unlink()
    (path / "mp_rank_00").rmdir()
    with pytest.raises(CheckpointError, match="Megatron-core's T5 in 2 pipeline stages"):
        import_megatron(tmp_path / "theirs", tmp_path / "dst")
    content["model"]["encoder_relative_pos_emb.relative_attention_bias.weight"] = torch.zeros(8, HEADS)
    (tmp_path / "other" / "mp_rank_00").mkdir(parents=True)
    torch.save(content, tmp_path / "other" / "mp_rank_00" / "model_optim_rng.pt")
    with pytest.raises(CheckpointError, match="a table of relative positions"):
        import_megatron(tmp_path / "other", tmp_path / "dst")


def test_an_output_of_its_own_comes_back(tmp_path):
    path = save_ours(tmp_path / "ours", OURS.model_copy(update={"tied_embeddings": False}))
    exported(path, tmp_path / "theirs", tensor=2, style="core")
    done = import_megatron(tmp_path / "theirs", tmp_path / "again")
    before, after = weights(path), weights(done.path)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
