"""Random T5s: transformers' with ours of the same weights, and Megatron's form with what the reference writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from megads.checkpoint.convert.huggingface.import_ import import_folder
from megads.checkpoint.format.reader import Reader
from megads.comm.grid import Grid
from megads.comm.groups import Groups, make_groups
from megads.inference.encoder_decoder import EncoderDecoderRunner
from megads.inference.load import load_model, open_weights
from megads.models.t5 import T5
from tests.checkpoint.convert.huggingface.models import write_checkpoint
from tests.inference.theirs import CPU
from tests.models.shapes import T5S
from tests.models.t5_reference import logits_of

KINDS = ("t5-v1.1", "t5-v1.0")
SIZE = 53
START = 2
ALONE = Grid()
_SIZES = {"vocab_size": SIZE, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2}
_SIZES |= {"num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}
_SIZES |= {"n_positions": 40, "decoder_start_token_id": START}
_FORMS: dict[str, dict[str, Any]] = {
    "t5-v1.0": {},
    "t5-v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
_kept: list[TemporaryDirectory[str]] = []


# Widths of weights and of the embedding: outputs differ by text, and transformers' own rounding stays below 5e-6.
_WIDTHS = {"t5-v1.1": (0.15, 1.0), "t5-v1.0": (0.3, 0.3)}


@cache
def module_of(kind: str) -> T5ForConditionalGeneration:
    """Return a random model of transformers; no norm is one, and version 1.1 has an output layer of its own."""
    torch.manual_seed(KINDS.index(kind) + 1)
    module = T5ForConditionalGeneration(T5Config(**_SIZES, **_FORMS[kind]))
    matrices, embedding = _WIDTHS[kind]
    with torch.no_grad():
        if kind == "t5-v1.1":
            module.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn_like(module.lm_head.weight))
        for name, parameter in module.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif "shared" in name:
                parameter.normal_(0.0, embedding)
            elif "lm_head" not in name:
                width = matrices * (0.5 if ".q." in name else 1.0) * (1.5 if "EncDec" in name else 1.0)
                parameter.normal_(0.0, 1.0 if "bias" in name else width)
    module.generation_config.eos_token_id = None
    return module.eval()


@cache
def folder_of(kind: str) -> Path:
    """Return a folder with our model in ``ours``, and in ``theirs`` that of transformers of which it is the import."""
    _kept.append(TemporaryDirectory(prefix=f"megads-{kind}-"))
    folder = Path(_kept[-1].name)
    if kind in KINDS:
        module_of(kind).save_pretrained(folder / "theirs")
        import_folder(folder / "theirs", folder / "ours", vocab_multiple=8)
    else:
        write_checkpoint(folder / "ours", T5S[kind], Grid())
    return folder


def runner_of(
    folder: Path, grid: Grid = ALONE, rank: int = 0, *, source: str = "ours", num_slots: int = 4
) -> EncoderDecoderRunner:
    """Return a runner of our model, on one rank of ``grid``."""
    groups = make_groups(grid, rank) if grid.world_size > 1 else Groups(grid, 0)
    weights = open_weights(folder / source)
    module = load_model(weights, groups, CPU, torch.float32)
    weights.close()
    assert isinstance(module, T5)
    start = weights.start(START)
    return EncoderDecoderRunner(module, groups, context=weights.context, num_slots=num_slots, start=start)


def texts(lengths: Sequence[int] = (1, 7, 3, 12, 5)) -> list[list[int]]:
    """Return random tokens for the encoder."""
    draw = torch.Generator().manual_seed(3)
    return [torch.randint(3, SIZE, (length,), generator=draw).tolist() for length in lengths]


def scores_of(kind: str, text: Sequence[int], begin: Sequence[int]) -> Tensor:
    """Return ``[d, V]``: log-probabilities of what follows each token of ``begin``, by a model that is not ours."""
    encoder, decoder = torch.tensor([list(text)]), torch.tensor([list(begin)])
    with torch.no_grad():
        if kind in KINDS:
            return module_of(kind)(input_ids=encoder, decoder_input_ids=decoder).logits[0].log_softmax(dim=-1)
        logits = logits_of(_weights(kind), encoder, decoder, torch.tensor([len(text)]), encoder=2, decoder=3, heads=8)
        return logits[0, :, : T5S[kind].vocab_size].log_softmax(dim=-1)


@cache
def _weights(kind: str) -> dict[str, Tensor]:
    weights = open_weights(folder_of(kind) / "ours")
    with Reader(weights.path) as reader:
        return {name: torch.from_numpy(reader.whole(name)) for name in reader.manifest.tensors}


def greedy(kind: str, text: Sequence[int], count: int) -> list[int]:
    """Return what another program writes: transformers' ``generate``, or the reference token by token."""
    if kind in KINDS:
        tokens = torch.tensor([list(text)])
        made = module_of(kind).generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=count, do_sample=False, use_cache=False
        )
        return [int(each) for each in made[0, 1:]]
    begin = [START]
    for _ in range(count):
        begin.append(int(scores_of(kind, text, begin)[-1].argmax()))
    return begin[1:]
