"""Which files a checkpoint of Megatron is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.checkpoint.format.manifest import read_manifest
from megads.errors import CheckpointError
from tests.checkpoint.convert.megatron.megatron import arguments, model_tensors, save, stage_model
from tests.checkpoint.convert.megatron.samples import check_logits


def test_the_tracker_decides_which(tmp_path):
    for iteration, seed in ((40, 1), (50, 2)):
        save(tmp_path / "src", model_tensors(2, 1, seed=seed), name=f"iter_{iteration:07d}", checkpoint_version=3.0)
    (tmp_path / "src" / "latest_checkpointed_iteration.txt").write_text("40\n")
    check_logits(import_megatron(tmp_path / "src", tmp_path / "dst"), model_tensors(2, 1, seed=1))
    (tmp_path / "src" / "latest_checkpointed_iteration.txt").unlink()
    with pytest.raises(CheckpointError, match="iter_0000040, iter_0000050"):
        import_megatron(tmp_path / "src", tmp_path / "other")
    check_logits(import_megatron(tmp_path / "src" / "iter_0000050", tmp_path / "other"), model_tensors(2, 1, seed=2))


@pytest.mark.parametrize("degree", [1, 2])
def test_virtual_pipeline_stages(tmp_path, degree):
    """Stage 0 holds layers 0 and 2, stage 1 layers 1 and 3."""
    chunks = model_tensors(4, degree)
    args = arguments(num_layers=4, tensor_model_parallel_size=degree, pipeline_model_parallel_size=2)
    for stage in range(2):
        for rank in range(degree):
            path = tmp_path / "src" / "iter_0000040" / f"mp_rank_{rank:02d}_{stage:03d}"
            path.mkdir(parents=True)
            models = {
                f"model{chunk}": stage_model(chunks, range(layer, layer + 1), rank)
                for chunk, layer in enumerate((stage, stage + 2))
            }
            content = {"args": args, "iteration": 40, "checkpoint_version": 3.0, **models}
            torch.save(content, path / "model_optim_rng.pt")
    check_logits(import_megatron(tmp_path / "src", tmp_path / "dst"), chunks)


def _save_layers(folder: Path, chunks: list[Any], *, head: bool) -> Path:
    """Write the files of DeepSpeed's pipeline engine, numbered as BigScience's."""
    path = folder / "global_step40"
    path.mkdir(parents=True)
    degree, total = len(chunks[0]), len(chunks) - 2
    for rank in range(degree):
        embedding = {"word_embeddings.weight": chunks[0][rank]["words"]}
        if "positions" in chunks[0][rank]:
            embedding["position_embeddings.weight"] = chunks[0][rank]["positions"]
        last = dict(chunks[-1][rank])
        files = {1: embedding, **{3 + layer: chunks[1 + layer][rank] for layer in range(total)}}
        if head:
            files[total + 5] = {"lm_head.weight": last.pop("output")}
        files[total + 4] = last
        for number, tensors in files.items():
            torch.save(tensors, path / f"layer_{number:02d}-model_{rank:02d}-model_states.pt")
        args = arguments(num_layers=total, tensor_model_parallel_size=degree, num_key_value_heads=2 if head else 4)
        content = {"module": None, "args": args, "checkpoint_version": 3.0, "iteration": 40, "global_steps": 41}
        torch.save(content, path / f"mp_rank_{rank:02d}_model_states.pt")
    (folder / "latest").write_text("global_step40")
    return path


@pytest.mark.parametrize("llama", [False, True])
@pytest.mark.parametrize("degree", [1, 2])
def test_layers_of_deepspeeds_pipeline(tmp_path, degree, llama):
    groups = 2 if llama else 4
    chunks = model_tensors(3, degree, groups=groups, llama=llama)
    _save_layers(tmp_path / "src", chunks, head=llama)
    done = import_megatron(tmp_path / "src", tmp_path / "dst")
    assert read_manifest(done.path).about["source_iteration"] == 40
    check_logits(done, chunks, groups=groups)


def test_a_layer_of_the_pipeline_is_missing(tmp_path):
    path = _save_layers(tmp_path / "src", model_tensors(3, 2), head=False)
    (path / "layer_04-model_01-model_states.pt").unlink()
    with pytest.raises(CheckpointError, match=r"layer_04-model_01-model_states\.pt is missing, of TP=2"):
        import_megatron(tmp_path / "src", tmp_path / "dst")
    (path / "layer_04-model_00-model_states.pt").unlink()
    with pytest.raises(CheckpointError, match="layer 4 are missing"):
        import_megatron(tmp_path / "src", tmp_path / "dst")


@pytest.mark.parametrize("flat", [False, True])
def test_deepspeed_without_its_pipeline(tmp_path, flat):
    chunks = model_tensors(2, 2)
    path = tmp_path / "src" / "global_step7"
    path.mkdir(parents=True)
    for rank in range(2):
        module = stage_model(chunks, range(2), rank)
        if flat:
            model = module["language_model"]
            module = {f"language_model.encoder.{name}": each for name, each in model["encoder"].items()}
            for name, each in model["embedding"].items():
                module[f"language_model.embedding.{name}.weight"] = each["weight"]
        args = arguments(tensor_model_parallel_size=2)
        content = {"module": module, "args": args, "global_steps": 7, "mp_world_size": 2, "checkpoint_version": 3.0}
        torch.save(content, path / f"mp_rank_{rank:02d}_model_states.pt")
    (tmp_path / "src" / "latest").write_text("global_step7")
    check_logits(import_megatron(tmp_path / "src", tmp_path / "dst"), chunks)
