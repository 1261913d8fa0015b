"""How many parameters a model has, and what a rank needs to train it. Arithmetic; no device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass

from megads.config.deepspeed import effective_zero_stage
from megads.config.derive import data_degree, padded_vocab_size
from megads.config.schema import ModelConfig, RunConfig
from megads.config.stages import step_parameters
from megads.errors import ConfigError

GIB = 2**30
PROGRAM_BYTES = 600 * 2**20
"""Of one process: Python, torch and DeepSpeed after a step on a CPU (377 MiB measured), and a full bucket (191 MiB)."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank at its highest point, the end of a forward pass."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    program: int

    @property
    def total(self) -> int:
        """Return the sum."""
        return sum(astuple(self))

    def __str__(self) -> str:
        parts = ("weights", "gradients", "optimizer", "activations", "logits", "program")
        return ", ".join(f"{name} {size / GIB:.2f}" for name, size in zip(parts, astuple(self), strict=True))


def count_parameters(model: ModelConfig) -> int:
    """Return the parameters of the whole model, with the vocabulary padded. ``model`` is derived."""
    return sum(step_parameters(model)) - _tied(model, 1)


def _tied(model: ModelConfig, tensor: int) -> int:
    """Return the parameters of a tied output that are those of the embedding again."""
    return padded_vocab_size(model) * model.hidden_size // tensor if model.tied_embeddings else 0


def estimate(run: RunConfig, world_size: int) -> Memory:
    """Return what one rank needs, in bytes. ``run`` is derived.

    Per parameter: fp32 4 weight, 4 gradient, 8 Adam, and under ZeRO 1 a 4-byte master copy;
    bf16 and fp16 2 weight, 2 gradient and 4 for its fp32 sum, 12 master and Adam. ZeRO 1
    divides the optimizer's part over data x seq. Activations are those of a layer without
    recomputation and with an attention that keeps no S x S matrix.
    """
    count = sum(step_parameters(run.model, run.parallel.tensor)) - _tied(run.model, run.parallel.tensor)
    half = run.train.dtype != "fp32"
    zero = effective_zero_stage(run) > 0
    sharers = data_degree(run, world_size) * run.parallel.sequence if zero else 1
    optimizer_bytes = 12 if half or zero else 8
    vocab = padded_vocab_size(run.model) // run.parallel.tensor
    tokens = run.train.micro_batch * run.model.seq_length
    return Memory(
        weights=count * (2 if half else 4),
        gradients=count * (6 if half else 4),
        optimizer=count * optimizer_bytes // sharers,
        activations=run.model.num_layers * _layer_activations(run),
        logits=3 * 4 * tokens * vocab,
        program=PROGRAM_BYTES,
    )


def _layer_activations(run: RunConfig) -> int:
    """Return the bytes one layer keeps for its backward pass.

    Per token, whole on every tensor-parallel rank: the input and output of two norms (RMSNorm
    also keeps the value between), in half precision also their float32 form, and two dropout
    masks. Split over ranks: queries, keys and values (with rotary positions also before
    these are applied); the attention's output, twice (as heads and joined); the MLP's input
    to and output of the activation, with swiglu two of each. Within 5 % of what autograd
    saves on a CPU, in fp32 and bf16.
    """
    model, half = run.model, run.train.dtype != "fp32"
    size = 2 if half else 4
    norms = 6 if model.normalization == "rmsnorm" else 4
    whole = norms * size + (2 * 4 if half else 0) + (2 * size if model.hidden_dropout else 0)
    rotary = 1 if model.position_embedding == "rope" else 0
    attention = ((3 + rotary) * model.num_heads + (2 + rotary) * model.num_kv_heads) * model.head_dim
    inner = (4 if model.activation == "swiglu" else 2) * model.ffn_hidden_size
    tokens = run.train.micro_batch * model.seq_length
    return tokens * (whole * model.hidden_size + size * (attention + inner) // run.parallel.tensor)


def check_fits(run: RunConfig, world_size: int, ranks_on_host: int, available_bytes: int, host: str) -> None:
    """Refuse a run that needs more memory than its host has, unless ``train.force`` is on.

    Args:
        run: derived.
        world_size: ranks of the run.
        ranks_on_host: ranks that share ``available_bytes``.
        available_bytes: of the host, or of one device with ``ranks_on_host`` 1.
        host: its name, for the message.

    Raises:
        ConfigError: the estimate, and the settings that would fit.
    """
    memory = estimate(run, world_size)
    needed = memory.total * ranks_on_host
    if run.train.force or needed <= available_bytes:
        return

    def fits(candidate: RunConfig) -> bool:
        return estimate(candidate, world_size).total * ranks_on_host <= available_bytes

    advice = list(_advice(run, world_size, fits))
    would_fit = f"{' or '.join(advice)} would fit" if advice else "use a smaller preset such as tiny"
    raise ConfigError(
        f"{host} has {available_bytes / GIB:.2f} GiB of memory for {ranks_on_host} ranks that need "
        f"{needed / GIB:.2f} GiB; GiB per rank: {memory}; {would_fit}; "
        f"--set train.force=true starts anyway"
    )


_LARGEST_ADVICE = 4096  # more ranks, samples or layers are no cure, and a slip of the finger may be 10**15


def _advice(run: RunConfig, world_size: int, fits: Callable[[RunConfig], bool]) -> Iterator[str]:
    """Yield single changes that fit, the least harmful first."""
    model, train = run.model, run.train
    for tensor in range(run.parallel.tensor + 1, min(world_size, _LARGEST_ADVICE) + 1):
        if world_size % tensor or any(size % tensor for size in _split_sizes(model)):
            continue
        parallel = run.parallel.model_copy(update={"tensor": tensor, "data": 0})
        if fits(run.model_copy(update={"parallel": parallel})):
            yield f"TP={tensor}"
            break
    # Smaller micro-batches that keep the global batch.
    rows = train.micro_batch * train.grad_acc_steps
    changes = (
        (
            "MICRO_BATCH",
            "train",
            "micro_batch",
            [size for size in range(min(train.micro_batch - 1, _LARGEST_ADVICE), 0, -1) if rows % size == 0],
        ),
        ("SEQ", "model", "seq_length", _halves(model.seq_length)),
        ("NLAYERS", "model", "num_layers", range(min(model.num_layers - 1, _LARGEST_ADVICE), 0, -1)),
    )
    for name, section, key, candidates in changes:
        for value in candidates:
            part = getattr(run, section).model_copy(update={key: value})
            if fits(run.model_copy(update={section: part})):
                yield f"{name}={value}"
                break


def _split_sizes(model: ModelConfig) -> tuple[int, ...]:
    return (model.num_heads, model.num_kv_heads, model.ffn_hidden_size, padded_vocab_size(model))


def _halves(value: int) -> Iterator[int]:
    while value >= 256:
        value //= 2
        yield value
