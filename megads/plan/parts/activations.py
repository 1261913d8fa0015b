"""What a rank keeps of a forward pass for the backward pass. Arithmetic; checked against autograd in tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from megads.config.pipeline.actions import in_flight
from megads.config.schema import RunConfig
from megads.config.sizes import HeadCount, heads_of_rank
from megads.config.stages import schedule_of
from megads.families.decoder import is_gated, spec_of
from megads.plan.conventions import MEGADS, Conventions


@dataclass(frozen=True)
class Stage:
    """What a pipeline stage holds."""

    index: int
    layers: int
    has_embedding: bool
    has_head: bool
    first: int = 0  # number of its first layer
    chunks: tuple[range, ...] = ()  # numbers of the layers of each chunk, where there are several

    @property
    def runs(self) -> tuple[range, ...]:
        """Return the numbers of the layers of each chunk."""
        return self.chunks or (range(self.first, self.first + self.layers),)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers of all layers."""
        return tuple(chain(*self.runs))


def rank_tokens(run: RunConfig) -> int:
    """Return the tokens of a micro-batch that one rank works on."""
    return run.train.micro_batch * run.model.seq_length // run.parallel.sequence


def saved_bytes(run: RunConfig, stage: Stage, by: Conventions = MEGADS) -> int:
    """Return what a stage keeps of all micro-batches that are in flight when most are."""
    layer, given = layer_bytes(run, by), run.recompute

    def of_chunk(numbers: range) -> int:
        layers = len(numbers)
        if given.granularity == "none":
            return layers * layer
        if given.granularity == "selective":
            return layers * (products_bytes(run, by) if by.products else layer - core_bytes(run, by))
        if given.method == "block":
            again = min(given.num_layers, layers)
            return again * input_bytes(run) + (layers - again) * layer
        return -(-layers // given.num_layers) * input_bytes(run)

    return most_kept(run, stage, of_chunk, lambda numbers: len(numbers) * layer)


def most_kept(run: RunConfig, stage: Stage, before: Callable[[range], int], after: Callable[[range], int]) -> int:
    """Return the most that a stage keeps of its chunks, of all micro-batches in flight.

    Args:
        before: bytes of the layers of a chunk between the forward and the backward pass of a micro-batch.
        after: bytes of them while weight gradients wait (zb-h1): inputs of the matrices and gradients of their outputs,
            about what the layers keep without recomputation.
    """
    kept, wait = [before(numbers) for numbers in stage.runs], [after(numbers) for numbers in stage.runs]
    held = in_flight(schedule_of(run), run.parallel.pipeline, len(kept), run.train.grad_acc_steps, stage.index)
    sizes = kept + wait
    return max(sum(a * b for a, b in zip((*forward, *waiting), sizes, strict=True)) for forward, waiting in held)


def recomputing_bytes(run: RunConfig, stage: Stage, by: Conventions = MEGADS) -> int:
    """Return what the largest piece of a stage that is computed again holds while it is."""
    given = run.recompute
    if given.granularity == "none" or not stage.layers:
        return 0
    if given.granularity == "selective":
        return layer_bytes(run, by) if by.products else core_bytes(run, by)
    largest = max(map(len, stage.runs))
    return layer_bytes(run, by) * (1 if given.method == "block" else min(given.num_layers, largest))


def products_bytes(run: RunConfig, by: Conventions) -> int:
    """Return what a layer keeps where a share of its matrix products is: its input, the attention's, theirs."""
    tensor, scattered = run.parallel.tensor, run.parallel.tensor if run.parallel.scatter_norms else 1
    matrices = spec_of(run.model).matrices()
    split = sum(each.shape[0] for each in matrices if each.dim == 0)
    whole = sum(each.shape[0] for each in matrices if each.dim == 1)
    numbers = by.products * (split / tensor + whole / scattered) + run.model.hidden_size / scattered
    numbers += run.model.num_heads * run.model.head_dim / tensor
    return int(rank_tokens(run) * numbers * _size(run))


def layer_bytes(run: RunConfig, by: Conventions = MEGADS) -> int:
    """Return the bytes one layer keeps for its backward pass.

    Per token, whole on every tensor-parallel rank unless the norms are scattered: what two norms
    keep (:func:`norm_bytes`), and two dropout masks. Split over tensor ranks: queries, keys and
    values (with rotary positions also before these are applied, unless they are exchanged
    between sequence ranks); the attention's output; the MLP's input to and output of the
    activation, with a gate two of each.
    """
    model, size, tensor = run.model, _size(run), run.parallel.tensor
    spec = spec_of(model)
    norms = sum(weight.size * norm_bytes(run, has_bias=bias) for weight, bias in spec.norms())
    whole = norms + (2 * (by.mask_bytes or size) * model.hidden_size if model.hidden_dropout else 0)
    up, out = spec.matrices("mlp")[0], spec.matrices("attention")[-1]
    scattered = tensor if run.parallel.scatter_norms else 1
    inside = by.gated * up.shape[0] // 2 if is_gated(model.activation) else 2 * up.shape[0]
    inside = inside if run.recompute.mlp_tiles == 1 else 0  # in tiles only the input is kept
    outside = whole // scattered + size * (inside + out.shape[1]) // tensor
    return rank_tokens(run) * (outside + _head_norm_bytes(run) // tensor) + _attention_bytes(run, by)


def norm_bytes(run: RunConfig, *, has_bias: bool) -> int:
    """Return what a norm keeps of an element: input and output. Kernels of accelerators keep nothing else.

    On a CPU RMSNorm also keeps the value between, and in half precision both keep a float32 form.
    """
    size = _size(run)
    if run.machine != "cpu":
        return 2 * size
    return (2 if has_bias else 3) * size + (4 if run.train.dtype != "fp32" else 0)


def _head_norm_bytes(run: RunConfig) -> int:
    """Return what the norms of queries and keys keep of a token: their input and the value between, in float32.

    A float32 input is counted with the attention's, unless those are exchanged between sequence ranks.
    """
    queries, keys = spec_of(run.model).head_widths
    if not queries:
        return 0
    if run.train.dtype != "fp32":
        return (8 if run.machine == "cpu" else 2) * (queries + keys)
    return 4 * (queries + keys) + (4 * (queries + 2 * keys) if run.parallel.sequence > 1 else 0)


def _size(run: RunConfig) -> int:
    return 4 if run.train.dtype == "fp32" else 2


def most_heads(run: RunConfig) -> HeadCount:
    """Return the heads of the rank that keeps most."""
    shares = heads_of_rank(run.model, run.parallel.tensor, run.parallel.sequence)
    return max(shares, key=lambda share: (share.queries, not share.is_even, share.keys))


def _head_bytes(run: RunConfig, by: Conventions) -> int:
    """Return the bytes of the queries, keys and values that a layer's attention keeps."""
    model, tensor = run.model, run.parallel.tensor
    if run.parallel.sequence > 1:
        most = most_heads(run)
        count = most.queries + 2 * most.keys
    else:
        is_turned = model.position_embedding == "rope" or spec_of(model).head_widths[0]
        turned = by.turned if is_turned else 1
        count = (turned * model.num_heads + (1 + turned) * model.num_kv_heads) // tensor
    return run.train.micro_batch * model.seq_length * count * model.head_dim * _size(run)


SHORTEST_IN_STACK = 0.75
"""Of the longest segment next to it, see ``megads.parallel.documents``: so little of a stack is filling."""


def _attention_bytes(run: RunConfig, by: Conventions) -> int:
    """Return what attention keeps: of its inputs, and in its core, which keeps copies of them where it stacks them."""
    heads, plain = _head_bytes(run, by), _plain_core_bytes(run, by)
    if run.recompute.granularity == "selective":
        return heads + core_bytes(run, by)
    return max(heads + plain, _stacked_core_bytes(run))


def core_bytes(run: RunConfig, by: Conventions = MEGADS) -> int:
    """Return what the attention core keeps besides its inputs, of rows that are whole or cut into segments."""
    return max(_plain_core_bytes(run, by), _stacked_core_bytes(run))


def _stacked_core_bytes(run: RunConfig) -> int:
    """Return what the core keeps of segments that are stacked: its inputs and its result, filling included."""
    if not run.data.reset_attention_mask or run.model.attention == "flash":
        return 0
    model, most = run.model, most_heads(run)
    keys = most.keys if most.is_even else most.queries
    numbers = 2 * (most.queries + keys) * model.head_dim * _size(run) + most.queries * weights_bytes(run)
    return int(run.train.micro_batch * model.seq_length * numbers / SHORTEST_IN_STACK)


def weights_bytes(run: RunConfig, by: Conventions = MEGADS) -> int:
    """Return what the core keeps of a query's weights: one float32; unfused, or on a CPU with dropout, all of them."""
    on_cpu = run.model.attention_dropout and run.machine == "cpu"
    of_score = by.score_bytes + (by.dropped_bytes if run.model.attention_dropout else 0)
    return 4 + (of_score + (CPU_WEIGHTS * 4 if on_cpu else 0)) * run.model.seq_length


def _plain_core_bytes(run: RunConfig, by: Conventions) -> int:
    """Return what the core keeps of rows that are whole, besides its inputs and what it hands on.

    The result itself is kept by the output projection; with sequence ranks that is another
    copy. Keys and values that serve unequal numbers of queries are repeated for them.
    """
    model = run.model
    most = most_heads(run)
    tokens = run.train.micro_batch * model.seq_length
    numbers = weights_bytes(run, by) + by.results * model.head_dim * _size(run)
    if run.parallel.sequence > 1 and by.exchanges_heads:
        numbers += model.head_dim * _size(run) * (1 if most.is_even else 3)
    return tokens * most.queries * numbers


CPU_WEIGHTS = 3
"""Float32 matrices S x S of a head that torch keeps on a CPU: softmax, what dropout multiplies by, the product."""


def input_bytes(run: RunConfig) -> int:
    """Return the bytes of a layer's input, kept for what is computed again."""
    given, grid = run.recompute, run.parallel
    if given.cpu_checkpointing and run.machine != "cpu":
        return 0
    split = grid.tensor if grid.scatter_norms or given.partition_activations else 1
    return rank_tokens(run) * run.model.hidden_size * _size(run) // split
