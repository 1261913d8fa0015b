"""Weights of Hugging Face and Megatron: the same slices and texts as from their import, and no more in memory."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from megads.checkpoint.convert.huggingface.read_tensors import Source
from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.checkpoint.format.shard_layout import parameters_of
from megads.comm.grid import Grid
from megads.errors import CheckpointError
from megads.inference.engine import Engine
from megads.inference.load import CheckpointWeights, HFWeights, MegatronWeights, open_weights
from megads.inference.sampling import Sampling
from tests.checkpoint.convert.huggingface.models import their_module
from tests.checkpoint.convert.megatron.megatron import arguments, model_tensors, save
from tests.inference.test_engine import assert_as_theirs, expected
from tests.inference.theirs import imported, prompts, runner_of
from tests.ranks import run_ranks

KINDS = ["gpt2", "llama3", "mistral-window", "qwen3"]


@pytest.fixture
def folder(tmp_path):
    """Return a copy of a Hugging Face folder, to change."""
    return shutil.copytree(imported("llama3") / "theirs", tmp_path / "theirs")


def _set(path, **values: Any) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **values}))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_and_log_probabilities_equal_transformers(kind):
    assert_as_theirs(Engine(runner_of(kind, Grid(), 0, num_slots=3, source="theirs")), kind)


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_four_ranks_equal_transformers(kind):
    run_ranks(4, _check_layout, kind, imported(kind), expected(kind))


def _check_layout(kind: str, folder: Any, wanted: Any) -> None:
    import torch.distributed as dist

    import tests.inference.test_engine as engine

    engine.expected = lambda kind: wanted
    grid = Grid(tensor=2, pipe=2)
    assert_as_theirs(Engine(runner_of(kind, grid, dist.get_rank(), folder=folder, source="theirs")), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_slices_are_those_of_the_import_from_safetensors_and_pickles(kind, tmp_path):
    theirs = imported(kind) / "theirs"
    shutil.copy(theirs / "config.json", tmp_path)
    torch.save(their_module(kind).state_dict(), tmp_path / "pytorch_model.bin")
    ours = open_weights(imported(kind) / "ours")
    for place in (theirs, tmp_path):
        weights = open_weights(place)
        assert isinstance(weights, HFWeights)
        for name, cut in parameters_of(ours.model).items():
            for rank in range(2):
                part = cut.of(rank, 2)
                np.testing.assert_array_equal(weights.read(name, part), ours.read(name, part), err_msg=name)
    ours.close()


@pytest.mark.parametrize(
    ("kind", "context", "longest"), [("gpt2", 24, 24), ("llama3", 64, 0), ("mistral-window", 32, 32)]
)
def test_the_context_is_the_folder_s(kind, context, longest):
    for source in ("ours", "theirs"):
        weights = open_weights(imported(kind) / source)
        assert (weights.context, weights.longest, weights.dtype) == (context, longest, "fp32")
        weights.close()


def test_every_token_of_the_folder_s_list_ends_a_text(folder):
    import transformers

    runner = runner_of("llama3", Grid(), 0)
    engine = Engine(runner)
    free = [engine.add(prompt, Sampling(max_tokens=12, temperature=0)) for prompt in prompts()]
    list(engine.run())
    ends = [free[0].output[4], free[1].output[2]]
    _set(folder / "generation_config.json", eos_token_id=ends)
    module = transformers.AutoModelForCausalLM.from_pretrained(folder)
    engine = Engine(runner, eos=open_weights(folder).ends(0))
    found = [engine.add(prompt, Sampling(max_tokens=12, temperature=0)) for prompt in prompts()]
    list(engine.run())
    assert {each.output[-1] for each in found if each.finish_reason == "stop"} == set(ends)
    for each in found:
        tokens = torch.tensor([each.prompt])
        text = module.generate(
            tokens, max_new_tokens=12, do_sample=False, pad_token_id=0, attention_mask=torch.ones_like(tokens)
        )
        assert [*each.prompt, *each.output] == text[0].tolist()


@pytest.mark.parametrize("source", ["ours", "theirs"])
def test_what_ends_a_text(source, folder):
    weights = open_weights(imported("llama3.2") / source)
    assert weights.ends(9) == (3, 4)
    weights.close()
    _set(folder / "config.json", eos_token_id=None)
    (folder / "generation_config.json").unlink()
    assert open_weights(folder).ends(9) == (9,)
    _set(folder / "config.json", eos_token_id=7)
    _set(folder / "generation_config.json", eos_token_id=None)
    assert open_weights(folder).ends(9) == (7,)


def _no_weight(folder):
    (folder / "model.safetensors").write_bytes(b"")


def _other_model(folder):
    _set(folder / "config.json", architectures=["MambaForCausalLM"])


@pytest.mark.parametrize(
    ("damage", "step", "words"),
    [
        (_no_weight, None, "is not a valid safetensors file"),
        (_other_model, None, "the architecture MambaForCausalLM is not supported"),
        (lambda folder: None, 5, "is a Hugging Face folder, which has no iterations; drop --step"),
        (lambda folder: (folder / "model.safetensors").unlink(), None, "holds no checkpoint; pass a run"),
    ],
)
def test_folders_that_cannot_be_read_are_one_line(folder, damage, step, words):
    damage(folder)
    with pytest.raises(CheckpointError, match=words) as error:
        open_weights(folder, step)
    assert "\n" not in str(error.value)


def test_a_folder_of_a_model_that_scores_texts_is_one_line(tmp_path):
    import transformers

    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 11}
    transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**sizes)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=f"^{tmp_path}: GPT2ForSequenceClassification scores texts and writes no"):
        HFWeights(tmp_path)


def test_a_folder_without_a_tokenizer(folder):
    with pytest.raises(CheckpointError, match="has no tokenizer; pass one with --tokenizer"):
        open_weights(folder).tokenizer()


# Megatron's own files.

MEGATRON = {
    "old": dict(degree=2, pipe=1, version=None),
    "middle": dict(degree=4, pipe=1, version=1.0),
    "gpt": dict(degree=2, pipe=2, version=2.0),
    "llama": dict(degree=2, pipe=2, version=3.0, groups=2, llama=True),
    "alone": dict(degree=1, pipe=1, version=3.0, groups=2, llama=True),
}


def _megatron(kind: str, folder: Path) -> Path:
    """Write a checkpoint of Megatron, and what its import makes of it in ``ours``."""
    wanted: dict[str, Any] = {"groups": 4, "llama": False, **MEGATRON[kind]}
    chunks = model_tensors(2, wanted["degree"], groups=wanted["groups"], llama=wanted["llama"])
    save(folder / "theirs", chunks, pipe=wanted["pipe"], checkpoint_version=wanted["version"])
    import_megatron(folder / "theirs", folder / "ours")
    return folder


def _texts(folder: Path, source: str, grid: Grid, rank: int) -> list[tuple[list[int], list[float]]]:
    engine = Engine(runner_of("", grid, rank, folder=folder, source=source))
    asked = Sampling(max_tokens=5, temperature=0, logprobs=0, prompt_logprobs=True)
    requests = [engine.add(prompt, asked) for prompt in ([1], [5, 7, 2], [20, 0, 3, 3, 11])]
    list(engine.run())
    return [
        (each.output, [one.logprob for one in (*each.prompt_scores[1:], *each.scores) if one.logprob is not None])
        for each in requests
    ]


@pytest.mark.parametrize("kind", MEGATRON)
def test_megatron_s_files_give_the_texts_of_their_import(kind, tmp_path):
    folder = _megatron(kind, tmp_path)
    assert isinstance(open_weights(folder / "theirs"), MegatronWeights)
    wanted = _texts(folder, "ours", Grid(), 0)
    assert all(len(output) == 5 and len(scores) >= 5 for output, scores in wanted)
    assert _texts(folder, "theirs", Grid(), 0) == wanted
    if kind in ("old", "llama"):
        run_ranks(4, _check_megatron, folder, wanted)


def _check_megatron(folder: Path, wanted: Any) -> None:
    import torch.distributed as dist

    found = _texts(folder, "theirs", Grid(tensor=2, pipe=2), dist.get_rank())
    for (output, scores), (their_output, their_scores) in zip(found, wanted, strict=True):
        assert output == their_output
        assert scores == pytest.approx(their_scores, abs=1e-5)


def test_what_is_said_of_megatron_s_files(tmp_path):
    chunks = model_tensors(2, 2)
    chunks[1][1]["input_layernorm.weight"] = chunks[1][0]["input_layernorm.weight"] + 0.5
    args = arguments(tensor_model_parallel_size=2, tokenizer_type="NullTokenizer", vocab_size=20)
    save(tmp_path / "theirs", chunks, args=args, checkpoint_version=3.0)
    weights = open_weights(tmp_path / "theirs", 40)
    assert (weights.context, weights.longest, weights.dtype, weights.ends(20)) == (12, 12, "fp32", (20,))
    assert weights.tokenizer().type == "NullTokenizer"
    assert weights.notes() == []
    for name, cut in parameters_of(weights.model).items():
        weights.read(name, cut)
    assert len(weights.notes()) == 1
    assert "differ by up to 0.5" in weights.notes()[0]
    save(tmp_path / "other", chunks, checkpoint_version=3.0)
    with pytest.raises(CheckpointError, match="names no tokenizer whose files are here; pass its file or folder with"):
        open_weights(tmp_path / "other").tokenizer()


def test_what_megatron_s_files_do_not_say_is_stated_to_the_import(tmp_path):
    save(tmp_path, model_tensors(2, 1), args=None, checkpoint_version=3.0)
    with pytest.raises(
        CheckpointError, match=f"state it with --num-heads of `megads checkpoint import-meg.* {tmp_path}"
    ):
        open_weights(tmp_path)


@pytest.mark.parametrize("file", ["mp_rank_00/model_optim_rng.pt", "mp_rank_00_model_states.pt"])
def test_an_empty_megatron_file_is_one_line(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(CheckpointError, match=f"{file}: not a readable file of torch.save") as error:
        open_weights(tmp_path)
    assert "\n" not in str(error.value)


# Two kinds of files in one folder.


def test_a_folder_with_both_kinds_of_weights_is_refused(folder):
    shutil.copytree(imported("llama3") / "ours", folder, dirs_exist_ok=True)
    with pytest.raises(
        CheckpointError, match="holds a Hugging Face model and the checkpoint iter_0000000 of megads; use"
    ):
        open_weights(folder)
    for place, step in ((folder, 0), (folder / "iter_0000000", None)):
        weights = open_weights(place, step)
        assert isinstance(weights, CheckpointWeights)
        weights.close()


# A rank holds its own part only.


def _peak_of_reading(weights: Any, rank: int, degree: int) -> tuple[int, int]:
    """Return the most bytes that reading held besides what it returned before, and the bytes of all slices."""
    kept = []
    tracemalloc.start()
    try:
        for name, cut in parameters_of(weights.model).items():
            kept.append(weights.read(name, cut.of(rank, degree)))
        return tracemalloc.get_traced_memory()[1], sum(each.nbytes for each in kept)
    finally:
        tracemalloc.stop()


def _wide(kind: str) -> Any:
    import transformers

    if kind == "gpt2":
        config = transformers.GPT2Config(n_embd=64, n_head=4, n_inner=8192, n_layer=1, vocab_size=64, n_positions=32)
        return transformers.GPT2LMHeadModel(config)
    sizes = {"hidden_size": 64, "intermediate_size": 8192, "num_hidden_layers": 1, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=64))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_rank_holds_its_own_slices_only(kind, dtype, tmp_path, monkeypatch):
    piece = 1 << 14
    monkeypatch.setattr("megads.checkpoint.convert.huggingface.read_tensors.PIECE", piece)
    module = _wide(kind).to(getattr(torch, dtype))
    module.save_pretrained(tmp_path / "safe")
    shutil.copytree(tmp_path / "safe", tmp_path / "bin", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(module.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    for place in (tmp_path / "safe", tmp_path / "bin"):
        weights = open_weights(place)
        _peak_of_reading(weights, 0, 4)  # modules that are imported late
        peak, held = _peak_of_reading(weights, 1, 4)
        assert peak < held + 16 * piece, place  # a whole matrix is 128 of them


def test_a_slice_of_a_large_parameter_needs_no_whole_one(tmp_path, monkeypatch):
    rows, width, piece = 4096, 512, 1 << 16
    monkeypatch.setattr("megads.checkpoint.convert.huggingface.read_tensors.PIECE", piece)
    matrix = torch.arange(rows * width).reshape(rows, width).remainder(251).bfloat16()
    save_file({"m": matrix}, tmp_path / "model.safetensors")
    source = Source(tmp_path)
    for shape, row, column in (((rows // 8, width), 3584, 0), ((rows, width // 8), 0, 448), ((8, 8), 100, 7)):
        out = np.zeros(shape, np.float32)
        tracemalloc.start()
        source.fill(out, "m", row, column)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert np.array_equal(out, matrix[row : row + shape[0], column : column + shape[1]].float().numpy())
        assert peak < 6 * piece  # the whole is 64 of them
