"""From a checkpoint to a Hugging Face folder: weights and settings, a band of rows at a time. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.checkpoint.convert.huggingface.config import SPECIAL, architecture_of, config_of
from megads.checkpoint.convert.huggingface.dtypes import SHORT, pack
from megads.checkpoint.convert.huggingface.names import HFTensor, tensors_of
from megads.checkpoint.convert.huggingface.write_shards import Outgoing, write_shards
from megads.checkpoint.format.commit import new_folder
from megads.checkpoint.format.manifest import Manifest
from megads.checkpoint.format.reader import Reader
from megads.checkpoint.resume.compatibility import HF, classes_of, model_of
from megads.config.schema import ModelConfig
from megads.errors import CheckpointError
from megads.families.table import ALL_CLASSES

BAND = 1 << 20
"""Elements that are read and written together."""

SaveTokenizer = Callable[[Path, int], Mapping[str, int | None]]
"""Writes the tokenizer's files to a folder, for samples of so many tokens; returns ids by bos, eos and pad.

``answer_end`` is the token that ends an answer of a chat, where the model has learnt chats.
"""


@dataclass(frozen=True)
class Exported:
    """What :func:`export` wrote."""

    architecture: str
    dtype: str
    files: list[str]
    parameters: int
    note: str = ""  # what the class computes otherwise than ours


def export(
    reader: Reader,
    final: Path,
    *,
    dtype: str = "",
    limit: int = 5 * 10**9,
    tokenizer: SaveTokenizer | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    check: Callable[[str, Path], None] = lambda dtype, folder: None,
) -> Exported:
    """Write the weights of a checkpoint as transformers reads them. The folder appears whole or not at all.

    ``dtype`` is fp32, bf16 or fp16; empty: the one the run was trained in, or the import had. ``limit`` is the bytes of
    tensors in a file; a larger tensor has a file of its own. Without ``tokenizer`` the folder gets none. ``progress``
    is called with the bytes that are written and their total, ``check`` with dtype and folder before it appears.

    Raises:
        CheckpointError: no class of transformers computes the model; it cannot be read or written;
            or a number is too large for fp16.
    """
    manifest = reader.manifest
    model, more = model_of(reader.path, manifest, scores=True), dict(manifest.about.get(HF, {}))
    architecture = architecture_of(model, more.get("architecture", ""))
    dtype = dtype or dtype_of(manifest)
    if manifest.settings:
        # Trained since it was imported: with attention to all of a sample, so that a window bounds nothing any more.
        had = 0 if more.get("sliding_window") else more.get("max_position_embeddings", 0)
        kept = {name: more[name] for name in ("generation", *SPECIAL) if name in more}
        more = {**kept, "max_position_embeddings": max(had, model.seq_length)}
    more["classes"] = classes_of(manifest)
    theirs = tensors_of(model, architecture)
    with new_folder(final) as folder:
        found = dict(tokenizer(folder, _length(model, more)) if tokenizer else {})
        answer_end = found.pop("answer_end", None)
        ids = {f"{name}_token_id": number for name, number in found.items() if number is not None}
        ids |= {name: more[name] for name in SPECIAL if name in more}
        _write_json(folder / "config.json", config_of(model, architecture, dtype, ids, more))
        generation = more.get("generation") or {"_from_model_config": True, **ids}
        _write_json(folder / "generation_config.json", _ending_with(answer_end, generation))
        outgoing = [Outgoing(each.name, each.shape, partial(_bands, reader, each, dtype)) for each in theirs]
        files = write_shards(folder, outgoing, dtype, limit, progress)
        check(dtype, folder)
    note = ALL_CLASSES[architecture].differs(model)
    return Exported(architecture, dtype, files, sum(each.rows * each.width for each in theirs), note)


def _ending_with(token: int | None, generation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of generation with one more token that ends a text."""
    ends = generation.get("eos_token_id", [])
    ends = ends if isinstance(ends, list) else [ends]
    if token is None or token in ends:
        return generation
    return {**generation, "eos_token_id": [*ends, token] if ends else token}


def _length(model: ModelConfig, more: Mapping[str, Any]) -> int:
    if model.position_embedding == "learned":
        return model.max_positions
    return int(more.get("max_position_embeddings") or model.seq_length)


def dtype_of(manifest: Manifest) -> str:
    """Return the dtype that a checkpoint was trained in, or imported from: fp32, bf16 or fp16."""
    trained = manifest.settings.get("train", {}).get("dtype")
    return str(trained or SHORT.get(manifest.about.get("torch_dtype", ""), "fp32"))


def _bands(reader: Reader, tensor: HFTensor, dtype: str) -> Iterator[NDArray[np.generic]]:
    """Yield a tensor as it lies in their files; a transposed one whole, since its rows are our columns."""
    cut, width = reader.cut(tensor.ours), tensor.width
    step = tensor.rows if tensor.transposed else max(1, BAND // width)
    for row in range(0, tensor.rows, step):
        rows = min(step, tensor.rows - row)
        read = reader.read(tensor.ours, "weight", cut, (tensor.first + row) * width, rows * width)
        numbers = read.reshape(rows, width).T.copy() if tensor.transposed else read
        try:
            yield pack(numbers, dtype)
        except CheckpointError as error:
            raise CheckpointError(f"{reader.path}: {tensor.ours}: {error}") from None


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf8")
