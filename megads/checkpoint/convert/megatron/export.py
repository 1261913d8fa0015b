"""Write a checkpoint of ours as Megatron's files, for any number of tensor and pipeline ranks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megads.checkpoint.convert.megatron.merge import Floats, cut_out, kv_to_theirs, qkv_to_theirs, with_rows
from megads.checkpoint.convert.megatron.names import Kind, Style, theirs_of
from megads.checkpoint.convert.megatron.target import Target, check_target, split_rank_of, stage_layers
from megads.checkpoint.convert.torch_files.write import DTYPES, Placeholder, TorchFile
from megads.checkpoint.format.commit import new_folder
from megads.checkpoint.format.manifest import Manifest
from megads.checkpoint.format.reader import VOCABULARY, Reader
from megads.checkpoint.format.shard_layout import ShardLayout
from megads.checkpoint.resume.compatibility import model_of
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.families.decoder import spec_of
from megads.families.megatron import SECOND_NAMES
from megads.storage.durable import sync, write_synced

_FOLDERS = {
    **dict.fromkeys(("language_model.encoder.", "language_model.decoder.", "language_model.pooler."), 2),
    **dict.fromkeys(("lm_head.", "binary_head."), 1),
}
"""Beginning of a legacy name -> in how many dictionaries within each other it lies."""

_WITH_STATE = (*("linear_qkv", "linear_q", "linear_kv", "linear_proj", "linear_fc1", "linear_fc2", "output_layer"),)
"""Modules of Megatron-core that look for ``_extra_state``, which is None without fp8."""


@dataclass(frozen=True)
class ExportedTensor:
    """A tensor of a pipeline stage: Megatron's name, ours, and how it is cut."""

    theirs: str
    ours: str
    cut: ShardLayout


def export_megatron(
    reader: Reader,
    folder: Path,
    target: Target,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    check: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Write ``folder``, which Megatron can ``--load``, and return the path of the checkpoint in it.

    One tensor is in memory at a time; ``folder``, a new one, is visible when all of it is on disk. ``progress`` is
    called with how many of how many tensors are done, ``check`` with the folder before it appears.

    Raises:
        CheckpointError: ``folder`` already exists or cannot be written, the checkpoint is
            damaged, or Megatron cannot have such a model.
    """
    model = model_of(reader.path, reader.manifest)
    check_target(model, target)
    name = "release" if target.iteration is None else f"iter_{target.iteration:07d}"
    with new_folder(folder) as part:
        (part / name).mkdir()
        _write(reader, model, part / name, target, progress)
        sync(part / name)
        newest = "release" if target.iteration is None else str(target.iteration)
        write_synced(part / "latest_checkpointed_iteration.txt", newest.encode())
        check(part)
    return folder / name


def _write(
    reader: Reader, model: ModelConfig, into: Path, target: Target, progress: Callable[[int, int], None]
) -> None:
    args = namespace(model, target, reader.manifest)
    stages = [_stage(model, target, stage) for stage in range(target.pipe)]
    total, done = sum(map(len, stages)), 0
    for number, stage in enumerate(stages):
        places = [
            Placeholder(key, each.cut.of(0, target.tensor).local_shape, DTYPES[target.dtype])
            for key, each in enumerate(stage)
        ]
        content = {
            "args": args,
            "checkpoint_version": 3.0,
            "iteration": target.iteration or 0,
            "model": _nested(stage, places, target.style),
            "num_floating_point_operations_so_far": 0,
        }
        with ExitStack() as open_files:
            files = []
            for rank in range(target.tensor):
                folder = into / (f"mp_rank_{rank:02d}" + (f"_{number:03d}" if target.pipe > 1 else ""))
                folder.mkdir()
                files.append(open_files.enter_context(TorchFile(folder / "model_optim_rng.pt", content)))
            for place, each in zip(places, stage, strict=True):
                whole = _whole(reader, model, each)
                _check_range(whole, each.ours, target.dtype)
                for rank, file in enumerate(files):
                    file.write(place, cut_out(whole, each.cut, rank, target.tensor))
                done += 1
                progress(done, total)
        for file_folder in into.iterdir():
            sync(file_folder)


def _stage(model: ModelConfig, target: Target, number: int) -> list[ExportedTensor]:
    """Return what pipeline stage ``number`` holds."""
    mine, split = stage_layers(model, target)[number], split_rank_of(model, target)
    kind, last = _kind(model), number == target.pipe - 1
    # The first stage of T5's decoder embeds its tokens with a copy of the tables.
    is_first = number in (0, split)
    stage: list[ExportedTensor] = []
    rows = target.vocab_rows(model)
    for each in spec_of(model).parameters():
        name, cut = each.name, ShardLayout(each.shape, each.dim, each.parts)
        if name in VOCABULARY:
            cut = ShardLayout((rows, *each.shape[1:]), 0, (rows,))
        if _is_of_heads(name):
            # Its groups of heads follow one another, so that it is cut like a matrix of one part.
            cut = ShardLayout(cut.shape, 0, cut.shape[:1])
        layer = each.step - 1
        if layer in mine:
            rest, stack = name.split(".", 2)[2], int(bool(model.decoder_layers) and layer >= model.num_layers)
            local = layer - max(mine.start, stack * model.num_layers)
            theirs = theirs_of(rest, target.style, local, kind=kind, stack=stack)
            stage.append(ExportedTensor(theirs, name, cut))
        elif last if layer == spec_of(model).num_layers else layer < 0 and is_first:
            theirs = theirs_of(name, target.style, None, kind=kind, stack=int(kind == "t5"))
            stage.append(ExportedTensor(theirs, name, cut))
    if model.tied_embeddings and last and not is_first:
        copy = theirs_of("embedding.weight", target.style, None, copy=True, kind=kind)
        stage.append(ExportedTensor(copy, "embedding.weight", ShardLayout((rows, model.hidden_size), 0, (rows,))))
    return stage


def _kind(model: ModelConfig) -> Kind:
    return "t5" if model.decoder_layers else "bert" if model.family == "bert" else "decoder"


def _is_of_heads(name: str) -> bool:
    return ".attention.qkv." in name or ".cross_attention.kv." in name


def _whole(reader: Reader, model: ModelConfig, tensor: ExportedTensor) -> Floats:
    """Return the whole parameter, rows in Megatron's order."""
    found = reader.whole(tensor.ours)
    if tensor.ours in VOCABULARY:
        return with_rows(found, tensor.cut.shape[0])
    if ".attention.qkv." in tensor.ours:
        return qkv_to_theirs(found, model.num_heads, model.num_kv_heads, model.head_dim)
    if ".cross_attention.kv." in tensor.ours:
        return kv_to_theirs(found, model.num_heads, model.head_dim)
    return found


def _check_range(tensor: Floats, name: str, dtype: str) -> None:
    largest = torch.finfo(DTYPES[dtype]).max
    if dtype == "fp16" and np.abs(tensor).max(initial=0) > largest:
        raise CheckpointError(f"{name} has elements above {largest:g}, the largest of fp16; use --dtype bf16")


def _nested(stage: list[ExportedTensor], places: list[Placeholder], style: Style) -> dict[str, Any]:
    """Return the model as Megatron keeps it: core flat, legacy in dictionaries of embedding, encoder and head."""
    model: dict[str, Any] = {}
    is_t5 = any(".cross_attention." in each.theirs for each in stage)
    for each, place in zip(stage, places, strict=True):
        if style != "legacy":
            model[each.theirs] = place
            module, _, kind = each.theirs.rpartition(".")
            if module.endswith(_WITH_STATE):
                model.setdefault(f"{module}._extra_state", None)
            if again := SECOND_NAMES.get(module) if is_t5 else None:
                model[f"{again}.{kind}"] = place
                if again.endswith(_WITH_STATE):
                    model[f"{again}._extra_state"] = None
            continue
        # A name within the encoder, the pooler or a head is one key.
        inside = next((inside for start, inside in _FOLDERS.items() if each.theirs.startswith(start)), -1)
        *folders, key = each.theirs.split(".", inside)
        inner = model
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[key] = place
    return model


def namespace(model: ModelConfig, target: Target, manifest: Manifest) -> argparse.Namespace:
    """Return the arguments that Megatron checks, takes with ``--use-checkpoint-args``, and needs in its tools."""
    progress, data = manifest.progress, manifest.settings.get("data", {})
    settings = manifest.settings.get("model", {})
    return argparse.Namespace(
        num_layers=model.num_layers,
        encoder_num_layers=model.num_layers,
        **_encoder_decoder(model, target, settings.get("decoder_seq_length", 0)),
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_heads,
        kv_channels=model.head_dim,
        group_query_attention=model.num_kv_heads != model.num_heads,
        num_query_groups=model.num_kv_heads if model.num_kv_heads != model.num_heads else 1,
        seq_length=model.seq_length,
        max_position_embeddings=model.max_positions,
        **_positions(model),
        normalization="RMSNorm" if model.normalization == "rmsnorm" else "LayerNorm",
        norm_epsilon=model.norm_epsilon,
        layernorm_epsilon=model.norm_epsilon,
        apply_layernorm_1p=False,
        apply_query_key_layer_scaling=False,
        apply_residual_connection_post_layernorm=False,
        swiglu=model.activation == "swiglu",
        openai_gelu=model.activation == "gelu_tanh" and not model.bias,
        bias_gelu_fusion=model.activation == "gelu_tanh" and model.bias,
        squared_relu=False,
        onnx_safe=None,
        add_bias_linear=model.bias,
        add_qkv_bias=False,
        qk_layernorm=model.qk_norm == "head",
        untie_embeddings_and_output_weights=not model.tied_embeddings,
        vocab_size=model.vocab_size - (data.get("tokenizer_type") == "NullTokenizer"),
        padded_vocab_size=target.vocab_rows(model),
        make_vocab_size_divisible_by=target.vocab_multiple or model.vocab_multiple,
        tokenizer_type=data.get("tokenizer_type"),
        tensor_model_parallel_size=target.tensor,
        pipeline_model_parallel_size=target.pipe,
        virtual_pipeline_model_parallel_size=None,
        num_layers_per_virtual_pipeline_stage=None,
        data_parallel_random_init=False,
        **({"bert_binary_head": model.binary_head} if model.family == "bert" else {}),
        **{key: settings[key] for key in ("hidden_dropout", "attention_dropout") if key in settings},
        ckpt_format="torch",
        use_distributed_optimizer=False,
        num_experts=None,
        expert_model_parallel_size=1,
        params_dtype=DTYPES[target.dtype],
        bf16=target.dtype == "bf16",
        fp16=target.dtype == "fp16",
        transformer_impl="transformer_engine" if target.style == "core-te" else "local",
        use_mcore_models=target.style != "legacy",
        iteration=target.iteration or 0,
        consumed_train_samples=int(progress.get("consumed_samples", 0)),
        consumed_valid_samples=0,
    )


def _encoder_decoder(model: ModelConfig, target: Target, length: int) -> Mapping[str, Any]:
    if not model.decoder_layers:
        return {}
    return {
        "decoder_num_layers": model.decoder_layers,
        "encoder_seq_length": model.seq_length,
        "decoder_seq_length": length or -(-model.seq_length // 2),
        "pipeline_model_parallel_split_rank": split_rank_of(model, target) or None,
    }


def _positions(model: ModelConfig) -> Mapping[str, Any]:
    rope = model.position_embedding == "rope"
    linear, llama3 = (model.rope_scaling == kind for kind in ("linear", "llama3"))
    return {
        "add_position_embedding": not rope,
        "position_embedding_type": "rope" if rope else "learned_absolute",
        "use_rotary_position_embeddings": rope,
        "rotary_percent": 1.0,
        "rotary_base": int(model.rope_theta) if model.rope_theta == int(model.rope_theta) else model.rope_theta,
        "rotary_interleaved": False,
        "rotary_seq_len_interpolation_factor": int(model.rope_scaling_factor) if linear else None,
        "use_rope_scaling": llama3,
        "rope_scaling_factor": model.rope_scaling_factor if llama3 else 8.0,
    }
