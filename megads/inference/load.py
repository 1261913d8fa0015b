"""From files to a model that generates, in any layout: each rank reads its own part."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from megads.checkpoint.convert.huggingface.dtypes import SHORT
from megads.checkpoint.convert.huggingface.export import dtype_of
from megads.checkpoint.convert.huggingface.import_ import HFModel, ends_of, start_of, tokenizer_type
from megads.checkpoint.convert.megatron.model import TOKENIZER_FILES, MegatronModel
from megads.checkpoint.format.folders import checkpoints_in
from megads.checkpoint.format.manifest import MANIFEST, Manifest
from megads.checkpoint.format.reader import Want
from megads.checkpoint.format.shard_layout import ShardLayout, parameters_of
from megads.checkpoint.lora.merged import open_for_use
from megads.checkpoint.resume.compatibility import HF, model_of
from megads.checkpoint.resume.start_point import is_hf_folder, is_megatron_folder, source_of
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig, RunConfig
from megads.config.stages import stage_steps
from megads.data.tokenizers.base import TokenizerSpec
from megads.errors import CheckpointError
from megads.inference.tokenizer import spec_of_checkpoint
from megads.models.build import model_class
from megads.models.gpt import GPT

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Weights(Protocol):
    """A model in files.

    Attributes:
        path: where they lie.
        model: its settings, derived.
        context: most tokens of a sequence, in training.
        longest: most tokens that the model can compute: learned positions, a sliding window; 0: any number.
        dtype: of training: fp32, bf16 or fp16.
    """

    path: Path
    model: ModelConfig
    context: int
    longest: int
    dtype: str

    def ends(self, eod: int) -> tuple[int, ...]:
        """Return the tokens that end a text; ``eod`` is the end-of-text token of its tokenizer."""

    def start(self, first: int) -> int:
        """Return the token with which a decoder begins that an encoder feeds; ``first`` is that of training."""

    def tokenizer(self) -> TokenizerSpec:
        """Return the description of its tokenizer.

        Raises:
            CheckpointError: it names none.
        """

    def read(self, name: str, cut: ShardLayout) -> NDArray[np.float32]:
        """Return the slice ``cut`` of a parameter, float32, in the shape of the slice."""

    def notes(self) -> list[str]:
        """Return lines worth showing, after reading."""

    def close(self) -> None:
        """Close the files."""


class CheckpointWeights:
    """The weights of a checkpoint, see :class:`Weights`; of a schedule-free optimizer the averaged ones.

    Adapters are merged with their base as they are read.

    Args:
        place: a checkpoint, a folder of checkpoints or a run.
        step: the iteration to take; None: the newest that is valid.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """

    def __init__(self, place: Path, step: int | None = None):
        found = source_of(place, step)
        self.path, self.broken = found.path, found.broken
        self._reader = open_for_use(found)
        self.manifest: Manifest = self._reader.manifest
        self.model = model_of(found.path, self.manifest)
        self.context, self.longest = limits(self.model, self.manifest.about.get("max_seq_length", 0))
        self.dtype = dtype_of(self.manifest)

    def ends(self, eod: int) -> tuple[int, ...]:
        """Return the tokens that end a text: the import's, and ``eod`` without any or when trained since."""
        ends = ends_of(self.manifest.about.get(HF, {}))
        return ends if ends and not self.manifest.settings else tuple(dict.fromkeys((*ends, eod)))

    def start(self, first: int) -> int:
        """Return the token with which a decoder begins: the import's, unless trained since."""
        about = self.manifest.about.get(HF)
        return start_of(about) if about and not self.manifest.settings else first

    def tokenizer(self) -> TokenizerSpec:
        """Return the description of its tokenizer."""
        return spec_of_checkpoint(self.path, self.manifest)

    def read(self, name: str, cut: ShardLayout) -> NDArray[np.float32]:
        """Return the slice ``cut`` of a parameter."""
        self._reader.cut(name)  # says so if it has none
        out = np.empty(cut.count, np.float32)
        self._reader.fill([Want(name, "weight", cut, 0, out)])
        return out.reshape(cut.local_shape)

    def notes(self) -> list[str]:
        """Return a line for every newer checkpoint that was skipped."""
        return list(self.broken)

    def close(self) -> None:
        """Close the files."""
        self._reader.close()


class HFWeights:
    """The weights of a Hugging Face folder, see :class:`Weights`.

    Raises:
        CheckpointError: the folder is incomplete, or of a model that ours cannot compute, or that writes no text.
    """

    def __init__(self, folder: Path):
        self.path = folder
        self._folder = HFModel(folder)
        self.model = self._folder.description.model
        if self.model.num_classes:
            what = self._folder.description.architecture
            raise CheckpointError(f"{folder}: {what} scores texts and writes none; `megads finetune --load` takes it")
        self.context, self.longest = limits(self.model, self._folder.description.longest)
        self.dtype = SHORT[self._folder.dtype]

    def ends(self, eod: int) -> tuple[int, ...]:
        """Return the tokens that end a text."""
        return ends_of(self._folder.about) or (eod,)

    def start(self, first: int) -> int:
        """Return the token with which a decoder begins."""
        return start_of(self._folder.about)

    def tokenizer(self) -> TokenizerSpec:
        """Return the description of its tokenizer."""
        kind = tokenizer_type(self.path)
        if not kind:
            raise CheckpointError(f"{self.path}: has no tokenizer; pass one with --tokenizer")
        return TokenizerSpec(kind, str(self.path))

    def read(self, name: str, cut: ShardLayout) -> NDArray[np.float32]:
        """Return the slice ``cut`` of a parameter."""
        return self._folder.read(name, cut)

    def notes(self) -> list[str]:
        """Return what was decided about it: what is strange in such a folder is an error."""
        return [f"{self.path}: {note}" for note in self._folder.description.notes]

    def close(self) -> None:
        """Do nothing: files are open while they are read."""


class MegatronWeights:
    """The weights of Megatron's files, see :class:`Weights`: the numbers that their import would have.

    Args:
        place: a checkpoint of Megatron-LM or Megatron-DeepSpeed, or the folder with its tracker.
        step: the iteration to take; None: the one that the tracker names.

    Raises:
        CheckpointError: it is incomplete, damaged, or of a model that ours cannot compute.
    """

    def __init__(self, place: Path, step: int | None = None):
        try:
            self._found = MegatronModel(place, step=step, are_tensors_verified=False)
        except CheckpointError as error:
            if "; state " not in str(error):
                raise
            raise CheckpointError(f"{error} of `megads checkpoint import-megatron {place} DST`") from None
        self.path, self.model = self._found.source.path, self._found.model
        self.context, self.longest = limits(self.model, 0)
        self.dtype = SHORT[str(self._found.about["torch_dtype"])]

    def ends(self, eod: int) -> tuple[int, ...]:
        """Return the token that ends a text."""
        return (eod,)

    def start(self, first: int) -> int:
        """Return the token with which a decoder begins."""
        return first

    def tokenizer(self) -> TokenizerSpec:
        """Return the description of its tokenizer: the files that its arguments name, if they are here."""
        about = self._found.about
        if "tokenizer_type" not in about:
            raise CheckpointError(
                f"{self.path}: names no tokenizer whose files are here; pass its file or folder with --tokenizer"
            )
        model, vocab, merges = (str(about.get(name, "")) for name in TOKENIZER_FILES)
        return TokenizerSpec(str(about["tokenizer_type"]), model, vocab, merges, self.model.vocab_size)

    def read(self, name: str, cut: ShardLayout) -> NDArray[np.float32]:
        """Return the slice ``cut`` of a parameter."""
        return self._found.read(name, cut)

    def notes(self) -> list[str]:
        """Return what was assumed, and what is strange in that which was read."""
        return self._found.notes()

    def close(self) -> None:
        """Do nothing: files are closed with the last of their tensors."""


def open_weights(place: Path, step: int | None = None) -> Weights:
    """Return the weights in ``place``: a run, checkpoints of megads or Megatron, or a Hugging Face folder.

    Args:
        place: where they lie.
        step: the iteration to take; None: the newest that is valid.

    Raises:
        CheckpointError: there are none, there are two kinds, or they cannot be read.
    """
    try:
        is_hf, is_megatron, found = is_hf_folder(place), is_megatron_folder(place), checkpoints_in(place)
    except OSError:
        return CheckpointWeights(place, step)  # says what is wrong
    ours = [each for each in found if (each / MANIFEST).is_file()]
    if is_hf and ours and step is None:
        raise CheckpointError(
            f"{place}: holds a Hugging Face model and the checkpoint {ours[-1].name} of megads; use --step for a "
            "checkpoint, or move config.json and its weights to a folder of their own"
        )
    if is_hf and not ours:
        if step is not None:
            raise CheckpointError(f"{place}: is a Hugging Face folder, which has no iterations; drop --step")
        return HFWeights(place)
    return MegatronWeights(place, step) if is_megatron else CheckpointWeights(place, step)


def limits(model: ModelConfig, window: int) -> tuple[int, int]:
    """Return context and longest of :class:`Weights`; ``window`` is that of its attention, 0: all of a sequence."""
    positions = model.max_positions if model.position_embedding == "learned" else 0
    longest = min((each for each in (window, positions) if each), default=0)
    return min(each for each in (longest, positions or model.seq_length) if each), longest


def load_model(weights: Weights, groups: Groups, device: torch.device, dtype: torch.dtype) -> GPT:
    """Return this rank's part of a model, in evaluation mode. It holds no more than that, and one parameter in float32.

    Args:
        weights: of the model.
        groups: the layout, which need not be that of training.
        device: where the weights go.
        dtype: of the weights.

    Raises:
        CheckpointError: the weights cannot be read.
        ConfigError: the model does not fit the layout.
    """
    model = _for_inference(weights.model, groups.tensor_size)
    plain = RunConfig()
    parallel = plain.parallel.model_copy(update={"pipeline": groups.pipe_size, "tensor": groups.tensor_size})
    run = plain.model_copy(update={"model": model, "parallel": parallel})
    with torch.device("meta"):
        module = model_class(model)(model, groups, steps=stage_steps(run)[groups.pipe_rank])
    marks = {name: vars(parameter) for name, parameter in module.named_parameters()}
    module = module.to(dtype).to_empty(device=device)
    for name, parameter in module.named_parameters():
        vars(parameter).update(marks[name])  # on some devices it is a new object
    fill(module, weights, groups, model)
    return module.eval()


def fill(module: nn.Module, weights: Weights, groups: Groups, model: ModelConfig, prefix: str = "") -> None:
    """Set the parameters of ``module``, which is ``prefix`` of ``model``, to what this rank has of the weights."""
    layouts = parameters_of(model)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            cut = layouts[prefix + name].of(groups.tensor_rank, groups.tensor_size)
            parameter.copy_(torch.from_numpy(weights.read(prefix + name, cut)))
            parameter.requires_grad_(False)


def _for_inference(model: ModelConfig, tensor: int) -> ModelConfig:
    """Return the model without dropout, with padding rows so that ``tensor`` ranks share the vocabulary."""
    multiple = math.lcm(model.vocab_multiple, tensor)
    return model.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0, "vocab_multiple": multiple})
