"""From a Hugging Face folder to a checkpoint. Torch only for pytorch_model.bin."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads import __version__
from megads.checkpoint.convert.huggingface.config import CONFIG, SPECIAL, ModelDescription, describe, with_heads
from megads.checkpoint.convert.huggingface.dtypes import LONG
from megads.checkpoint.convert.huggingface.names import HFTensor, tensors_of
from megads.checkpoint.convert.huggingface.read_tensors import Source, read_json, refuse_pointer
from megads.checkpoint.convert.writer import common_dtype, new_writer
from megads.checkpoint.format.commit import new_folder
from megads.checkpoint.format.folders import checkpoint_name
from megads.checkpoint.format.shard_layout import ShardLayout, boxes, parameters_of
from megads.checkpoint.resume.compatibility import HF, shape_of
from megads.errors import CheckpointError
from megads.families.bert import HEADS, POOLER
from megads.families.table import ALL_CLASSES
from megads.storage.tokenizer_files import wrong_kind

TOKENIZER = "tokenizer"
"""Folder of the tokenizer, next to the checkpoint."""

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json"),
)
"""What transformers reads a tokenizer from."""

GENERATION = "generation_config.json"
START = "decoder_start_token_id"

_TABLES = re.compile(
    r"rotary_emb\.inv_freq$|\battn\.(bias|masked_bias)$|EncDecAttention\.relative_attention_bias\.weight$"
    r"|embeddings\.(position_ids|token_type_ids)$"
)
"""Tables that older versions saved with the weights; they follow from the settings, or nothing reads them."""

_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "cls.predictions.decoder.weight")
"""Names under which older versions saved an embedding again."""

_BIASES = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
"""Names under which they saved a bias again -> its own."""


@dataclass(frozen=True)
class Imported:
    """What :func:`import_folder` made."""

    path: Path  # of the checkpoint
    description: ModelDescription  # what the folder holds
    parameters: int
    dtype: str  # of the folder's weights, as torch calls it
    tokenizer: dict[str, str]  # settings of the tokenizer, by the names of ``about``; empty where the folder has none

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know."""
        return self.description.notes


def import_folder(
    source: Path,
    final: Path,
    *,
    vocab_multiple: int = 128,
    progress: Callable[[int, int], None] = lambda done, total: None,
    function: Callable[[], Mapping[str, Any]] = dict,
) -> Imported:
    """Make a checkpoint of the weights in a Hugging Face folder, for ``LOAD`` and ``USE_CHECKPOINT_ARGS``.

    ``final``, the new folder of checkpoints with the tokenizer's files, appears whole or not at all. Rows of zeros pad
    the vocabulary to ``vocab_multiple``. ``progress`` is called with the elements that are read and their total;
    ``function`` returns what else the checkpoint says of the model.

    Raises:
        CheckpointError: it is not such a folder, incomplete, or of a model that ours cannot compute.
    """
    found = HFModel(source, vocab_multiple)
    model = found.description.model
    kind = tokenizer_type(source)
    tokenizer = {"tokenizer_type": kind, "tokenizer_model": str(final / TOKENIZER)} if kind else {}
    with new_folder(final) as folder:
        if tokenizer:
            _copy_tokenizer(source, folder / TOKENIZER)
        about = {**_about(found), **tokenizer}
        tensors = parameters_of(model)
        total, done = sum(cut.count for cut in tensors.values()), 0
        with new_writer(folder, tensors, shape_of(model), about) as writer:
            for name, cut in tensors.items():
                tensor = found.read(name, cut)
                writer.add(name, tensor)
                done += tensor.size
                progress(done, total)
            about.update(function())
    return Imported(final / checkpoint_name(0), found.description, found.parameters, found.dtype, tokenizer)


class HFModel:
    """The model in a Hugging Face folder; its weights are read when they are needed.

    Attributes:
        folder: of it.
        description: of its ``config.json``.
        dtype: of its weights, as torch calls it.
        about: what else its files say, by name: ids of special tokens, settings of generation.
        parameters: how many elements it has, without padding.

    Raises:
        CheckpointError: it is not such a folder, incomplete, or of a model that ours cannot compute.
    """

    def __init__(self, folder: Path, vocab_multiple: int = 1):
        self.folder = folder
        described = describe(folder, vocab_multiple)
        self._weights = Source(folder)
        self.description = with_heads(described, self._weights.shapes)
        theirs = tensors_of(self.description.model, self.description.architecture)
        stored = [each for each in theirs if self.description.has_heads or not each.name.startswith(HEADS)]
        self._stored_as = _match(folder, self.description, self._weights, stored)
        self._parts: dict[str, list[HFTensor]] = {}
        for each in theirs:
            self._parts.setdefault(each.ours, []).append(each)
        self.dtype = _dtype(self._weights, self._stored_as)
        self.parameters = sum(each.rows * each.width for each in theirs)
        config = read_json(folder / CONFIG)
        self.about: dict[str, Any] = {name: config[name] for name in (*SPECIAL, START) if name in config}
        if (folder / GENERATION).is_file():
            self.about["generation"] = read_json(folder / GENERATION)

    def read(self, name: str, cut: ShardLayout) -> NDArray[np.float32]:
        """Return the slice ``cut`` of one of our parameters, and read no more; zeros pad the vocabulary to its rows.

        Raises:
            CheckpointError: its file cannot be read.
        """
        out = np.zeros(cut.local_shape, np.float32)
        matrix = out.reshape(len(out), -1)
        for part in self._parts[name]:
            for box in boxes(cut, 0, cut.count):
                top, bottom = max(box.top, part.first), min(box.bottom, part.first + part.rows)
                if top < bottom:
                    row, column = divmod(box.at(top, box.left), box.stride)
                    place = matrix[row : row + bottom - top, column : column + box.right - box.left]
                    first, stored_as = top - part.first, self._stored_as.get(part.name, "")
                    if not stored_as:
                        whole = _drawn(part, self.description.model.init_std)
                        place[:] = whole[first : first + bottom - top, box.left : box.right]
                    elif part.transposed:
                        self._weights.fill(place.T, stored_as, box.left, first)
                    else:
                        self._weights.fill(place, stored_as, first, box.left)
        return out


def _drawn(part: HFTensor, std: float) -> NDArray[np.float32]:
    """Return initial values of a head, which its folder has not: the same in every import."""
    if part.name.endswith(".bias") or len(part.shape) == 1:
        return np.full((part.rows, 1), float(not part.name.endswith(".bias")), np.float32)
    random = np.random.default_rng(zlib.crc32(part.name.encode()))
    return random.standard_normal((part.rows, part.width), np.float32) * np.float32(std)


def _match(source: Path, description: ModelDescription, weights: Source, theirs: list[HFTensor]) -> dict[str, str]:
    """Return for every tensor that is wanted its name in the files, after checking that all are there and no more."""
    # The first GPT-2 folders were saved without the output layer's module around them.
    prefix = ALL_CLASSES[description.architecture].prefix
    bare = prefix and not any(name.startswith(prefix) for name in weights.shapes)
    found = {each.name: each.name.removeprefix(prefix) if bare else each.name for each in theirs}
    found = {name: _old_name(stored, weights.shapes) for name, stored in found.items()}
    missing = [name for name in found.values() if name not in weights.shapes]
    if missing:
        raise CheckpointError(
            f"{source}: has no {missing[0]}; "
            f"{len(missing)} of {len(found)} tensors of {description.architecture} are missing"
        )
    for each in theirs:
        if (shape := weights.shapes[found[each.name]]) != each.shape:
            raise CheckpointError(
                f"{source}: {each.name} has shape {list(shape)}, {CONFIG} says {list(each.shape)}; "
                "the weights belong to another model"
            )
    known = set(found.values())
    unknown = [name for name in weights.shapes if name not in known and not _TABLES.search(name)]
    if not description.model.binary_head:
        unknown = [name for name in unknown if not name.startswith(f"{POOLER}.")]
    tied = ["lm_head.weight"] if description.model.tied_embeddings else []
    for name in [each for each in (*tied, *_COPIES) if each in unknown]:
        unknown.remove(name)
        embedding = found[theirs[0].name]
        if not weights.have_equal_rows(name, embedding):
            raise CheckpointError(
                f"{source}: {CONFIG} says tie_word_embeddings, but {name} is not {embedding}; "
                "set tie_word_embeddings to false in it if they were trained apart"
                if name in tied
                else f"{source}: {name} is not {embedding}, and the model has one embedding"
            )
    for name, own in _BIASES.items():
        if name in unknown and own in known and weights.have_equal_rows(name, own):
            unknown.remove(name)
    if unknown:
        raise CheckpointError(
            f"{source}: has {unknown[0]}, which {description.architecture} as {CONFIG} describes it has not; "
            f"{len(unknown)} tensors would be lost"
        )
    return found


def _old_name(name: str, stored: Mapping[str, Any]) -> str:
    """Return ``name``, or what the first folders of BERT call it."""
    old = name.replace(".LayerNorm.weight", ".LayerNorm.gamma").replace(".LayerNorm.bias", ".LayerNorm.beta")
    return old if name not in stored and old in stored else name


def _dtype(weights: Source, found: dict[str, str]) -> str:
    """Return the type of the weights, see :func:`common_dtype`; CheckpointError for one that cannot be read."""
    kinds = [weights.kinds[name] for name in found.values()]
    strange = [name for name in found.values() if weights.kinds[name] not in LONG.values()]
    if strange:
        raise CheckpointError(
            f"{weights.folder}: {strange[0]} is of type {weights.kinds[strange[0]]}; "
            f"weights of {', '.join(LONG.values())} can be read, quantised ones must be converted first"
        )
    return common_dtype(kinds)


def _about(found: HFModel) -> dict[str, Any]:
    description = found.description
    window = {"max_seq_length": description.longest} if description.longest else {}
    return {
        "megads": __version__,
        "source": str(found.folder),
        "torch_dtype": found.dtype,
        **window,
        HF: {"architecture": description.architecture, **description.more, **found.about},
    }


def ends_of(about: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens that end a text by what a folder says, see :class:`HFModel`; several for many chat models.

    As in transformers, settings of generation come first, and none at all is an empty answer.
    """
    for source in (about.get("generation") or {}, about):
        found = source.get("eos_token_id")
        ends = tuple(each for each in (found if isinstance(found, list) else [found]) if type(each) is int)
        if ends:
            return ends
    return ()


def start_of(about: Mapping[str, Any]) -> int:
    """Return the token with which a decoder begins by what a folder says, see :class:`HFModel`: else its padding."""
    for name in (START, "pad_token_id"):
        for source in (about.get("generation") or {}, about):
            if type(source.get(name)) is int:
                return int(source[name])
    return 0  # T5's padding


def tokenizer_type(folder: Path) -> str:
    """Return the TOKENIZER_TYPE that reads the files of ``folder``, empty where there is no tokenizer."""
    if (folder / "tokenizer.json").is_file():
        return "HFTokenizer"
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return "GPT2BPETokenizer"
    if (folder / "tokenizer.model").is_file():
        return "Llama2Tokenizer"
    return ""


def _copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the files of a tokenizer to a new folder; CheckpointError for one of another kind than its name says."""
    try:
        target.mkdir()
        for name in TOKENIZER_FILES:
            if (source / name).is_file():
                refuse_pointer(source / name)
                if problem := wrong_kind(source / name):
                    raise CheckpointError(f"{source / name}: {problem}; remove it, or fetch the tokenizer again")
                shutil.copyfile(source / name, target / name)
    except OSError as error:
        raise CheckpointError(f"{error.filename or target}: {error.strerror}") from None
