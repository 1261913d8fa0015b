"""Functions that talk to other ranks, as one node each in the graphs of torch's compiler.

The compiler follows a function's Python and stops where work runs in the background or a process group
is more than a name. So what an autograd Function does is hidden in a custom operator of torch while a graph is
recorded: the graph has the call, and the call does what it does without a compiler, with its messages in the
same order, timed and counted. Without a compiler nothing lies between.

The graph names a group ``tensor`` and not by its ranks, so that every rank records the same graph, and one
rank's compiled code serves all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

import megads.timing.collectives as dist

Group = dist.ProcessGroup | None

NAMESPACE = "megads"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_GROUPS: dict[str, dist.ProcessGroup] = {}
_NAMES: dict[dist.ProcessGroup, str] = {}


def name_group(group: Group, axis: str) -> None:
    """Have graphs call ``group`` by its ``axis``; other groups of the same axis in one process get a number behind."""
    if group is None or group in _NAMES:
        return
    name = next(name for n in count() if (name := f"{axis}{n or ''}") not in _GROUPS)
    _GROUPS[name], _NAMES[group] = group, name


def _name_of(group: Group) -> str:
    """Return what graphs call ``group``; the empty string for a group of one rank."""
    if group is None:
        return ""
    group = getattr(group, "real_obj", group)  # the compiler's stand-in for it, from torch 2.10 on
    name_group(group, "group")
    return _NAMES[group]


# What torch.compiler.assume_constant_result does, without importing the compiler.
_name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Opaque:
    """A function that graphs hold as one operator. Its results are fresh tensors, none an alias of another.

    Args:
        function: of tensors, groups and numbers.
        name: of the operator.
        schema: the operator's: arguments of type ``str`` are groups.
    """

    def __init__(self, function: Callable[..., Any], name: str, schema: str):
        self.function, self.name = function, name
        self.groups = tuple(place for place, part in enumerate(_arguments(schema)) if part.startswith("str "))
        _LIBRARY.define(name + schema)
        _LIBRARY.impl(name, self._run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", self._shapes, lib=_LIBRARY)
        self.operator = getattr(getattr(torch.ops, NAMESPACE), name).default

    def __call__(self, *args: Any) -> Any:
        """Return ``function(*args)``; while a graph is recorded, the node that does it."""
        if not torch.compiler.is_compiling():
            return self.function(*args)
        named = [_name_of(each) if place in self.groups else each for place, each in enumerate(args)]
        return self.operator(*named)

    def _run(self, *args: Any) -> Any:
        return self.function(*(_GROUPS.get(each) if place in self.groups else each for place, each in enumerate(args)))

    def _shapes(self, *args: Any) -> Any:
        """Return results of the right shapes, strides and types: what is asked of others is not done."""
        with dist.nothing_sent():
            return self._run(*args)


def opaque(schema: str) -> Callable[[Callable[..., Any]], Opaque]:
    """Make a function an :class:`Opaque` one, named as it is."""
    return lambda function: Opaque(function, function.__name__.strip("_"), schema)


def _arguments(schema: str) -> list[str]:
    inside = re.match(r"\((.*?)\) ->", schema)
    assert inside is not None, schema
    return inside[1].split(", ")


class OpaqueFunction:
    """An autograd Function whose two directions graphs hold as one operator each; else it is the Function.

    It has one result, a fresh tensor, and so are its gradients.

    Args:
        schema: the forward operator's.
        saved: names of the arguments that the Function saves for its backward pass, in its order.
        kept: names of those that it keeps as attributes of the same names.
    """

    def __init__(self, function: type[Function], schema: str, saved: str, kept: str):
        self.function = function
        parts = _arguments(schema)
        names = [part.split()[-1] for part in parts]
        saved_at = tuple(names.index(name) for name in saved.split())
        kept_at = tuple(names.index(name) for name in kept.split())
        kept_names, wanted = tuple(kept.split()), len(names)
        title = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in function.__name__).strip("_")
        more = ", ".join([parts[place] for place in (*saved_at, *kept_at)])

        def forward(*args: Any) -> Any:
            return function.forward(_Kept((), (), {}), *args)

        def backward(grad: Tensor, needs: Sequence[bool], *args: Any) -> list[Tensor]:
            tensors, numbers = args[: len(saved_at)], args[len(saved_at) :]
            kept_now = _Kept(tensors, tuple(needs), dict(zip(kept_names, numbers, strict=True)))
            found = function.backward(kept_now, grad)
            return [each for each in found if each is not None]

        there = Opaque(forward, title, schema)
        back = Opaque(backward, f"{title}_backward", f"(Tensor grad, bool[] needs, {more}) -> Tensor[]")

        class Recorded(Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Any:
                ctx.save_for_backward(*(args[place] for place in saved_at))
                ctx.kept = tuple(args[place] for place in kept_at)
                return there(*args)

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Any:
                needs = list(ctx.needs_input_grad)
                found = back(grad, needs, *ctx.saved_tensors, *ctx.kept)
                gradients, place = [], 0
                for need in needs:
                    gradients.append(found[place] if need else None)
                    place += need
                return tuple(gradients)

        assert wanted
        self.recorded = Recorded

    def apply(self, *args: Any) -> Any:
        """Do as the Function's ``apply``."""
        return self.recorded.apply(*args) if torch.compiler.is_compiling() else self.function.apply(*args)


def opaque_function(schema: str, *, saved: str, kept: str) -> Callable[[type[Function]], OpaqueFunction]:
    """Make an autograd Function an :class:`OpaqueFunction`."""
    return lambda function: OpaqueFunction(function, schema, saved, kept)


class _Kept(SimpleNamespace):
    """Stands for a Function's ``ctx`` in one direction."""

    def __init__(self, tensors: Sequence[Tensor], needs: tuple[bool, ...], kept: dict[str, Any]):
        super().__init__(saved_tensors=tuple(tensors), needs_input_grad=needs, parameters=None, **kept)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep nothing: the backward operator is given what it needs."""
