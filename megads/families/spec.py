"""The parameters of a model, described once. Counts, cuts, files, FLOPs and initial weights are derived from it.

A model is a list of *steps*: 0 is the embedding, 1 .. L are the layers, L + 1 the final norm
with the output projection. Equal layers that follow each other are a *stack*, of which one is described for
all; a decoder is one stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["matrix", "bias", "norm", "embedding", "positions", "output", "adapter"]
"""``norm`` is a norm's weight; its bias, if it has one, is a ``bias``; ``adapter``: see ``megads.families.lora``."""


@dataclass(frozen=True)
class Parameter:
    """One parameter, whole."""

    name: str  # as in ``megads.models.gpt.GPT``; of a layer without ``layers.N.`` in a :class:`Stack`
    shape: tuple[int, ...]  # one or two dimensions
    kind: Kind  # what it is
    dim: int | None = None  # the dimension that tensor-parallel ranks cut; None: each holds all of it
    # sizes of what is fused along ``dim``, such as (q, k, v) or (gate, up); of each a rank holds its share
    parts: tuple[int, ...] = ()
    into_residual: bool = False  # whether its output is added to the residual stream
    step: int = 0  # of the model

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Stack:
    """Equal layers that follow each other."""

    num_layers: int
    layer: tuple[Parameter, ...]  # of each of them


@dataclass(frozen=True)
class Spec:
    """A model's parameters in order."""

    stacks: tuple[Stack, ...]  # their layers are counted on from one to the next
    embedding: tuple[Parameter, ...]  # of step 0
    output: tuple[Parameter, ...]  # of the last step, without a tied embedding
    is_tied: bool  # whether the output projection is the embedding
    usual: tuple[Parameter, ...] = ()  # of most layers, where a few have much more

    @property
    def num_layers(self) -> int:
        """L, the layers of all stacks."""
        return sum(each.num_layers for each in self.stacks)

    @property
    def layer(self) -> tuple[Parameter, ...]:
        """The parameters of a layer; with several stacks those that are :attr:`usual`, or of the largest one."""
        return self.usual or max((each.layer for each in self.stacks), key=lambda layer: local_size(layer, 1))

    def layers(self) -> Iterator[tuple[Parameter, ...]]:
        """Yield the parameters of every layer, by their names within it."""
        for stack in self.stacks:
            yield from [stack.layer] * stack.num_layers

    def layer_of(self, index: int) -> tuple[Parameter, ...]:
        """Return the parameters of the layer with number ``index``, from 0 on.

        Raises:
            KeyError: the model has no such layer.
        """
        first = 0
        for stack in self.stacks:
            if first <= index < first + stack.num_layers:
                return stack.layer
            first += stack.num_layers
        raise KeyError(index)

    def parameters(self) -> Iterator[Parameter]:
        """Yield every parameter of the model by its full name, with its step."""
        yield from self.embedding
        for index, layer in enumerate(self.layers()):
            for each in layer:
                yield replace(each, name=f"layers.{index}.{each.name}", step=index + 1)
        for each in self.output:
            yield replace(each, step=self.num_layers + 1)

    def of(self, name: str) -> Parameter:
        """Return the parameter with a full name.

        Raises:
            KeyError: the model has none of this name.
        """
        index, _, key = name.partition(".")[2].partition(".")
        if index.isdecimal():
            return by_name(self.layer_of(int(index)))[key]
        return by_name((*self.embedding, *self.output))[name]

    @property
    def tables(self) -> tuple[Parameter, ...]:
        """The embedding and the output projection, which have a row for every token; one if they are tied."""
        return tuple(each for each in (*self.embedding, *self.output) if each.kind in ("embedding", "output"))

    @property
    def is_adapted(self) -> bool:
        """Whether it has adapters, and nothing else of it is trained."""
        return any(each.kind == "adapter" for stack in self.stacks for each in stack.layer)

    def is_trained(self, parameter: Parameter) -> bool:
        """Return whether a parameter of the model is trained; else it is frozen."""
        return parameter.kind == "adapter" or not self.is_adapted

    @property
    def copied(self) -> tuple[Parameter, ...]:
        """What the last step uses of the first one's, and holds a copy of on another pipeline stage."""
        return self.tables if self.is_tied else ()

    def matrices(self, module: str = "") -> list[Parameter]:
        """Return the matrices of :attr:`layer`; with ``module`` those of its ``attention`` or ``mlp``."""
        return [each for each in self.layer if each.kind == "matrix" and each.name.startswith(module)]

    def norms(self) -> Iterator[tuple[Parameter, bool]]:
        """Yield the weight of every norm of the residual stream in :attr:`layer`, and whether the norm has a bias."""
        names = {each.name for each in self.layer}
        for each in self.layer:
            if each.kind == "norm" and not each.name.startswith("attention."):
                yield each, f"{each.name.removesuffix('weight')}bias" in names

    @property
    def head_widths(self) -> tuple[int, int]:
        """The channels of the queries and of the keys of a layer that are normalised; none where they are not."""
        names = by_name(self.layer)
        if "attention.q_norm.weight" not in names:
            return 0, 0
        queries, keys, _ = names["attention.qkv.weight"].parts
        return queries, keys

    def step_sizes(self, tensor: int = 1, *, trained: bool = False) -> list[int]:
        """Return the elements of every step on one of ``tensor`` ranks; with ``trained`` those that are not frozen.

        A tied embedding counts in the last step as well.
        """

        def sized(parameters: Iterable[Parameter]) -> int:
            return local_size((each for each in parameters if self.is_trained(each) or not trained), tensor)

        layers = [size for each in self.stacks for size in [sized(each.layer)] * each.num_layers]
        return [sized(self.embedding), *layers, sized((*self.output, *self.copied))]


def by_name(parameters: Iterable[Parameter]) -> dict[str, Parameter]:
    """Return ``parameters`` by their names."""
    return {each.name: each for each in parameters}


def local_size(parameters: Iterable[Parameter], tensor: int) -> int:
    """Return the elements that one of ``tensor`` tensor-parallel ranks holds of ``parameters``."""
    cut = whole = 0
    for each in parameters:
        if each.dim is None:
            whole += each.size
        else:
            cut += each.size
    return cut // tensor + whole


def norm(name: str, width: int, *, bias: bool) -> Iterator[Parameter]:
    """Yield the parameters of a norm over ``width`` channels, whole on every rank."""
    yield Parameter(f"{name}.weight", (width,), "norm")
    if bias:
        yield Parameter(f"{name}.bias", (width,), "bias")


def column(name: str, width: int, parts: tuple[int, ...], *, bias: bool) -> Iterator[Parameter]:
    """Yield the parameters of a projection of ``width`` channels to ``parts``, which ranks cut."""
    yield Parameter(f"{name}.weight", (sum(parts), width), "matrix", 0, parts)
    if bias:
        yield Parameter(f"{name}.bias", (sum(parts),), "bias", 0, parts)


def row(name: str, width: int, inner: int, *, bias: bool) -> Iterator[Parameter]:
    """Yield the parameters of a projection of ``inner`` channels, which ranks cut, back to ``width``."""
    yield Parameter(f"{name}.weight", (width, inner), "matrix", 1, (inner,), into_residual=True)
    if bias:
        yield Parameter(f"{name}.bias", (width,), "bias")


def classifier(outputs: int, width: int, *, bias: bool) -> Iterator[Parameter]:
    """Yield the parameters of a head that scores whole rows, whole on every rank."""
    yield Parameter("classifier.weight", (outputs, width), "matrix")
    if bias:
        yield Parameter("classifier.bias", (outputs,), "bias")


def table(name: str, rows: int, width: int, kind: Literal["embedding", "output"]) -> Parameter:
    """Return a table whose rows, one for every token, ranks cut."""
    return Parameter(f"{name}.weight", (rows, width), kind, 0, (rows,))
