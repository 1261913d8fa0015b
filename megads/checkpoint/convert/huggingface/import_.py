"""From a Hugging Face folder to a checkpoint. Torch only for pytorch_model.bin."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads import __version__
from megads.checkpoint.convert.huggingface.dtypes import LONG
from megads.checkpoint.convert.huggingface.names import Theirs, tensors_of
from megads.checkpoint.convert.huggingface.read_config import CONFIG, Described, describe
from megads.checkpoint.convert.huggingface.read_tensors import Source, read_json
from megads.checkpoint.convert.huggingface.tokenizer import copy_tokenizer, tokenizer_type
from megads.checkpoint.convert.huggingface.write_config import SPECIAL
from megads.checkpoint.convert.writer import Writer
from megads.checkpoint.format.atomic_folder import new_folder
from megads.checkpoint.format.folders import checkpoint_name
from megads.checkpoint.format.tensors import parameters_of
from megads.checkpoint.resume.compatibility import HF, shape_of
from megads.errors import CheckpointError
from megads.families.decoder import padded_vocab_size
from megads.families.table import CLASSES

TOKENIZER = "tokenizer"
"""Folder of the tokenizer, next to the checkpoint."""

GENERATION = "generation_config.json"

_TABLES = re.compile(r"rotary_emb\.inv_freq$|\battn\.(bias|masked_bias)$")
"""Tables that older versions saved with the weights; they follow from the settings."""


@dataclass(frozen=True)
class Imported:
    """What :func:`import_folder` made.

    Attributes:
        path: of the checkpoint.
        described: what the folder holds.
        parameters: how many numbers.
        dtype: of the folder's weights, as torch calls it.
        tokenizer: settings of the tokenizer, by the names of ``about``; empty where the folder has none.
    """

    path: Path
    described: Described
    parameters: int
    dtype: str
    tokenizer: dict[str, str]


def import_folder(
    source: Path,
    final: Path,
    *,
    vocab_multiple: int = 128,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Imported:
    """Make a checkpoint of the weights in a Hugging Face folder, for ``LOAD`` and ``USE_CHECKPOINT_ARGS``.

    Args:
        source: the folder.
        final: the folder of checkpoints to make, with the tokenizer's files; it appears whole or not at all.
        vocab_multiple: to which rows of zeros pad the vocabulary.
        progress: called with the numbers that are taken and their total.

    Raises:
        CheckpointError: it is no such folder, not whole, or of a model that ours cannot compute.
    """
    described = describe(source, vocab_multiple)
    weights = Source(source)
    theirs = tensors_of(described.model, described.architecture)
    found = _match(source, described, weights, theirs)
    dtype = _dtype(weights, found)
    kind = tokenizer_type(source)
    tokenizer = {"tokenizer_type": kind, "tokenizer_model": str(final / TOKENIZER)} if kind else {}
    with new_folder(final) as folder, ExitStack() as stack:
        if tokenizer:
            copy_tokenizer(source, folder / TOKENIZER)
        about = {**_about(source, described, dtype), **tokenizer}
        tensors = parameters_of(described.model)
        writer = Writer(folder, tensors, shape_of(described.model), about)
        stack.callback(writer.abandon)
        total, done = sum(cut.count for cut in tensors.values()), 0
        for name in tensors:
            tensor = _assemble(weights, tensors[name].shape, [each for each in theirs if each.ours == name], found)
            writer.add(name, tensor)
            done += tensor.size
            progress(done, total)
        writer.finish()
    count = sum(each.rows * each.width for each in theirs)
    return Imported(final / checkpoint_name(0), described, count, dtype, tokenizer)


def _match(source: Path, described: Described, weights: Source, theirs: list[Theirs]) -> dict[str, str]:
    """Return for every tensor that is wanted its name in the files, after checking that all are there and no more."""
    # The first GPT-2 folders were saved without the output layer's module around them.
    prefix = CLASSES[described.architecture].prefix
    bare = prefix and not any(name.startswith(prefix) for name in weights.shapes)
    found = {each.name: each.name.removeprefix(prefix) if bare else each.name for each in theirs}
    missing = [name for name in found.values() if name not in weights.shapes]
    if missing:
        raise CheckpointError(
            f"{source}: has no {missing[0]}; "
            f"{len(missing)} of {len(found)} tensors of {described.architecture} are missing"
        )
    for each in theirs:
        if (shape := weights.shapes[found[each.name]]) != each.shape:
            raise CheckpointError(
                f"{source}: {each.name} has shape {list(shape)}, {CONFIG} says {list(each.shape)}; "
                "the weights belong to another model"
            )
    known = set(found.values())
    unknown = [name for name in weights.shapes if name not in known and not _TABLES.search(name)]
    if described.model.tied_embeddings and "lm_head.weight" in unknown:
        unknown.remove("lm_head.weight")
        embedding = found[theirs[0].name]
        if not np.array_equal(weights.read("lm_head.weight"), weights.read(embedding), equal_nan=True):
            raise CheckpointError(
                f"{source}: {CONFIG} says tie_word_embeddings, but lm_head.weight is not {embedding}; "
                "set tie_word_embeddings to false in it if they were trained apart"
            )
    if unknown:
        raise CheckpointError(
            f"{source}: has {unknown[0]}, which {described.architecture} as {CONFIG} describes it has not; "
            f"{len(unknown)} tensors would be lost"
        )
    return found


def _dtype(weights: Source, found: dict[str, str]) -> str:
    """Return the one type of numbers that holds all of the weights: of several, float32."""
    kinds = Counter(weights.kinds[name] for name in found.values())
    strange = [name for name in found.values() if weights.kinds[name] not in LONG.values()]
    if strange:
        raise CheckpointError(
            f"{weights.folder}: {strange[0]} is of type {weights.kinds[strange[0]]}; "
            f"weights of {', '.join(LONG.values())} can be read, quantised ones must be converted first"
        )
    return next(iter(kinds)) if len(kinds) == 1 else "float32"


def _assemble(
    weights: Source, shape: tuple[int, ...], parts: list[Theirs], found: dict[str, str]
) -> NDArray[np.float32]:
    """Return one of our parameters, whose rows of padding are zeros."""
    out = np.zeros(shape, np.float32)
    for part in parts:
        read = weights.read(found[part.name])
        out[part.first : part.first + part.rows] = read.T if part.turned else read
    return out


def _about(source: Path, described: Described, dtype: str) -> dict[str, Any]:
    config = read_json(source / CONFIG)
    ids = {name: config[name] for name in SPECIAL if name in config}
    generation = {}
    if (source / GENERATION).is_file():
        generation = {"generation": read_json(source / GENERATION)}
    window = {"max_seq_length": described.longest} if described.longest else {}
    return {
        "megads": __version__,
        "source": str(source),
        "torch_dtype": dtype,
        **window,
        HF: {"architecture": described.architecture, **described.more, **ids, **generation},
    }


def padding_rows(described: Described) -> int:
    """Return how many rows of zeros our vocabulary has behind theirs."""
    return padded_vocab_size(described.model) - described.model.vocab_size
