"""What layers send in one step, over the tensor and the sequence axis: of every family, and of adapters.

A layer consists of products whose inputs every tensor rank needs whole (``ins``: q, k and v; gate and up) and
products whose results are parts of a sum (``outs``). Of an ``in`` the gradient is summed, of an ``out`` the result.
With ``SCATTER_NORMS`` an ``in`` is gathered, again in the backward pass, and its gradient scattered; an ``out`` is
scattered, and its gradient gathered (arXiv 2205.05198). See ``megads.models.gpt.Block``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from megads.config.schema import RunConfig
from megads.families.decoder import spec_of
from megads.families.encoder_decoder import has_decoder
from megads.families.lora import A, B
from megads.families.retro import first_layer, looks
from megads.families.spec import Parameter
from megads.families.table import FAMILIES
from megads.plan.parts import retro
from megads.plan.parts.activations import Stage, rank_tokens
from megads.plan.parts.stacks import head_tokens


@dataclass(frozen=True)
class Products:
    """Products of a layer over the same tokens.

    Attributes:
        numbers: of a rank's micro-batch in every input or result: tokens x width.
        ins: whose inputs are whole.
        outs: whose results are sums.
        is_frozen: whether the weights get no gradient, so that no input is gathered for it.
        lost: ``ins`` whose input needs no gradient.
    """

    numbers: int
    ins: int
    outs: int
    is_frozen: bool = False
    lost: int = 0


def tensor_counts(run: RunConfig, stage: Stage) -> Counter[tuple[str, int]]:
    """Return how often a micro-batch asks for every (kind, numbers of the whole tensor) over the tensor axis."""
    found: Counter[tuple[str, int]] = Counter()
    is_scattered = run.parallel.scatter_norms
    for number, is_again in _layers(run, stage):
        for each in _products(run, number):
            _add(found, each, is_scattered=is_scattered, passes=2 if is_again else 1)
    is_adapted = spec_of(run.model).is_adapted
    if stage.has_embedding:
        for tokens in _embedded(run):
            table = Products(tokens * run.model.hidden_size, 0, 1)
            _add(found, table, is_scattered=is_scattered, passes=1, has_backward=not is_adapted)
        if is_scattered and not is_adapted:
            found.update(_positions(run))
    if stage.has_head:
        dense = [each.size for each in spec_of(run.model).output if each.name.startswith("lm_head.dense.")]
        if is_scattered and dense and not is_adapted:  # of BERT, whose gradient each rank has of its own tokens
            found["all-reduce", sum(dense)] += 1
        head = Products(head_tokens(run) * run.model.hidden_size, 1, 0, is_frozen=is_adapted)
        _add(found, head, is_scattered=is_scattered, passes=1)
    return found


def sequence_counts(run: RunConfig, stage: Stage) -> Counter[tuple[int, str]]:
    """Return how often a micro-batch asks for an all-to-all of (numbers, what) over the sequence axis."""
    found: Counter[tuple[int, str]] = Counter()
    for number, is_again in _layers(run, stage):
        for numbers, what in _exchanges(run, number):
            found[numbers, what] += 3 if is_again else 2
    return found


def _layers(run: RunConfig, stage: Stage) -> Iterator[tuple[int, bool]]:
    """Yield the numbers of a stage's layers, and whether the forward pass of each is done again."""
    given = run.recompute
    for numbers in stage.runs:
        for place, number in enumerate(numbers):
            is_all = given.method != "block" or place < given.num_layers
            yield number, given.granularity == "full" and is_all


def _add(
    found: Counter[tuple[str, int]], each: Products, *, is_scattered: bool, passes: int, has_backward: bool = True
) -> None:
    back = each.ins - each.lost
    if not is_scattered:
        found["all-reduce", each.numbers] += passes * each.outs + (back if has_backward else 0)
        return
    again = 0 if each.is_frozen else each.ins
    gathers = passes * each.ins + (again + each.outs if has_backward else 0)
    found["all-gather", each.numbers] += gathers
    found["reduce-scatter", each.numbers] += passes * each.outs + (back if has_backward else 0)


def _products(run: RunConfig, number: int) -> list[Products]:
    """Return the products of the layer with ``number``."""
    model, own = run.model, rank_tokens(run)
    width, spec = model.hidden_size, spec_of(run.model)
    if spec.is_adapted:
        is_first = number == 0 and run.recompute.granularity != "full"
        plain = Products(own * width, 2, 2, is_frozen=True, lost=int(is_first))
        return [plain, *_adapters(spec.layer_of(number), own)]
    if has_decoder(model):
        said = head_tokens(run)
        if number < model.num_layers:
            return [Products(own * width, 2, 2)]
        return [Products(said * width, 3, 3), Products(own * width, 1, 0)]
    found = [Products(own * width, 2, 2)]
    if FAMILIES[model.family].samples == "retro" and model.retro_attention_gate and looks(number, model.num_layers):
        texts = retro.text_tokens(run) * width
        found += [Products(own * width, 1, 1), Products(texts + _ahead(run) * width, 1, 0)]
        if number == first_layer(model.num_layers):
            # The encoder's first layer looks at the chunks.
            encoder = 2 * model.retro_encoder_layers + 1
            found += [Products(texts, encoder, encoder), Products(own * width, 1, 0)]
    return found


def _adapters(layer: Iterable[Parameter], tokens: int) -> Iterator[Products]:
    """Yield the products of adapters between their A and their B, whose width is their rank."""
    for each in layer:
        if each.kind != "adapter":
            continue
        if each.name.endswith(B) and each.dim == 0:
            yield Products(tokens * _rows(layer, each), 1, 0, is_frozen=True)
        elif each.name.endswith(A) and each.dim == 1:
            yield Products(tokens * each.shape[0], 0, 1)


def _rows(layer: Iterable[Parameter], second: Parameter) -> int:
    """Return the rows of the A that belongs to a B."""
    name = second.name.removesuffix(B) + A
    return next(each.shape[0] for each in layer if each.name == name)


def _embedded(run: RunConfig) -> list[int]:
    """Return the tokens that a micro-batch embeds at once."""
    if has_decoder(run.model):
        return [rank_tokens(run) + head_tokens(run)]
    is_retro = FAMILIES[run.model.family].samples == "retro" and run.model.retro_attention_gate
    return [rank_tokens(run), *([retro.text_tokens(run)] if is_retro else [])]


def _positions(run: RunConfig) -> Counter[tuple[str, int]]:
    """Return what learned positions send, whose ranks find the gradient of their tokens' rows."""
    model, width = run.model, run.model.hidden_size
    table = [each for each in spec_of(model).embedding if each.name == "positions.weight"]
    found: Counter[tuple[str, int]] = Counter()
    if not table:
        return found
    is_whole = has_decoder(model) or run.data.reset_position_ids
    own = (model.seq_length // run.parallel.sequence) * width
    found[("all-reduce", table[0].size) if is_whole else ("all-gather", own)] += 1
    if len(_embedded(run)) > 1:
        found["all-reduce", table[0].size] += 1
    return found


def _ahead(run: RunConfig) -> int:
    """Return the tokens of neighbours that come from the sequence rank before, which the first look sees as well."""
    return run.train.micro_batch * retro.of_chunk(run.model) if run.parallel.sequence > 1 else 0


def _exchanges(run: RunConfig, number: int) -> Iterator[tuple[int, str]]:
    """Yield what goes over the sequence axis in the forward pass of a layer, and back in its backward pass."""
    model, ranks, tensor = run.model, run.parallel.sequence, run.parallel.tensor
    heads = model.num_heads
    keys = max(model.num_kv_heads, min(heads, ranks * tensor))
    own, is_seen = rank_tokens(run), has_decoder(model) and number >= model.num_layers
    mine = head_tokens(run) if is_seen else own

    def of(tokens: int, count: int) -> int:
        return tokens * model.head_dim * count // tensor

    yield of(mine, heads + 2 * keys), "queries, keys and values"
    yield of(mine, heads), "results of attention"
    if is_seen:
        yield of(mine, heads), "queries of looks"
        yield of(own, 2 * keys), "keys and values of looks"
        yield of(mine, heads), "results of attention"
    is_retro = FAMILIES[model.family].samples == "retro" and model.retro_attention_gate
    if is_retro and number == first_layer(model.num_layers):
        scattered = tensor if run.parallel.scatter_norms else 1
        yield _ahead(run) * model.hidden_size // scattered, "neighbours of the chunk before"
