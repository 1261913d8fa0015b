"""Weights from a Hugging Face folder: the same slices and texts as from its import, and its own end of text."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch

from megads.checkpoint.format.shard_layout import parameters_of
from megads.comm.grid import Grid
from megads.errors import CheckpointError
from megads.inference.engine import Engine
from megads.inference.load import HFWeights, open_weights
from megads.inference.sampling import Sampling
from tests.checkpoint.convert.huggingface.models import their_module
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


def test_a_folder_without_a_tokenizer(folder):
    with pytest.raises(CheckpointError, match="has no tokenizer; pass one with --tokenizer"):
        open_weights(folder).tokenizer()


@pytest.mark.parametrize("file", ["mp_rank_00/model_optim_rng.pt", "mp_rank_00_model_states.pt"])
def test_a_megatron_checkpoint_is_imported_first(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(CheckpointError, match=f"`megads checkpoint import-megatron {tmp_path} DST`"):
        open_weights(tmp_path)
