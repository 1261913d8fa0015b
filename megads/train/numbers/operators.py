"""Watches every operator of a step on this rank, and finds the first whose result is not finite.

Nothing of it runs unless a step has gone wrong: that step is done again under the watch, which looks at the result of
every operator and waits for the device each time. An operator is the origin where its result holds NaN or Inf and
what it computes with does not; the layer is that of the module whose output is the first that is not finite. Masks are
Inf on purpose, inside of a layer whose output is finite, and count as nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FINITE, HAS_INF, HAS_NAN = 0, 1, 2

EMPTY = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "resize_", "set_")
"""Operators whose result is whatever the memory holds."""

MOST = 64
"""Origins that are kept: the one that counts is among the first."""


@dataclass(frozen=True)
class Origin:
    """Where numbers stopped being finite on one rank.

    Attributes:
        phase: ``weights`` (before the step), ``forward`` or ``backward``.
        micro_batch: of this rank in the step, from 0.
        layer: name of the module; empty: outside of all.
        operator: of torch; empty: none that torch dispatches, such as a fused kernel or a collective.
        node: of the backward pass.
        order: operators before it.
        wrong: elements of the result that are not finite.
        count: elements of the result.
        largest: of what the operator computes with, by magnitude.
    """

    phase: str
    micro_batch: int = 0
    layer: str = ""
    operator: str = ""
    node: str = ""
    order: int = 0
    value: str = "NaN"
    wrong: int = 0
    count: int = 0
    shape: tuple[int, ...] = ()
    dtype: str = ""
    largest: float = 0.0

    def line(self) -> str:
        """Return it in words."""
        what = f"{self.value} in {self.wrong} of {self.count} elements"
        place = self.layer or "the model"
        if self.phase == "weights":
            return f"{what} of the weight {place} before the step"
        by = f" of {self.operator}" if self.operator else ""
        behind = f" ({self.node})" if self.node else ""
        large = f", which computes with up to {self.largest:.3g} in {self.dtype}" if self.operator else ""
        return f"{what}{by}{behind} in the {self.phase} pass of {place}, micro-batch {self.micro_batch}{large}"


def level(tensor: Any) -> int:
    """Return whether a tensor is finite, holds Inf, or NaN; what holds no floats is finite."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
        return FINITE
    plain = tensor.detach()
    if bool(plain.isfinite().all()):
        return FINITE
    return HAS_NAN if bool(plain.isnan().any()) else HAS_INF


def levels(values: Any) -> int:
    """Return the highest :func:`level` of the tensors in nested containers."""
    return max(map(level, tree_leaves(values)), default=FINITE)


class OperatorWatch(TorchDispatchMode):
    """A block in which every operator is watched.

    Args:
        chunks: the modules of this rank, whose layers are named.
    """

    def __init__(self, chunks: Sequence[nn.Module]):
        super().__init__()
        self.names = {each: name for chunk in chunks for name, each in chunk.named_modules()}
        self.order = 0
        self.found: list[Origin] = []  # of operators
        self.bad: tuple[Origin, int, int] | None = None  # the first layer: between which operators it ran
        self._stack: list[tuple[nn.Module, int]] = []  # modules that run, and the operators before each
        self._calls: dict[str, int] = {}  # of the outermost modules
        self._micro_batch = 0  # in the forward pass
        self._behind: tuple[str, int] = ("", 0)  # the layer and micro-batch whose gradient came last
        self._is_stopped = False

    def verdict(self) -> Origin | None:
        """Return where numbers of this rank stopped being finite; None where they came from another, or did not."""
        if self.bad is not None:
            layer, first, last = self.bad
            inside = [each for each in self.found if first <= each.order < last and each.phase == layer.phase]
            return replace(inside[0], layer=inside[0].layer or layer.layer) if inside else layer
        return next((each for each in self.found if each.phase == "backward"), None)

    # Operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        is_mutable = bool(func._schema.is_mutable)
        before = levels((args, given)) if is_mutable else FINITE
        largest = _largest((args, given)) if is_mutable else 0.0
        result = func(*args, **given)
        self.order += 1
        if self._is_stopped or func.namespace not in ("aten", "megads") or func._opname in EMPTY:
            return result
        if levels(result):
            self._note(func, result, before if is_mutable else levels((args, given)), (args, given), largest)
        return result

    def _note(self, func: Any, result: Any, before: int, given: Any, largest: float) -> None:
        after = levels(result)
        if after <= before or any(isinstance(each, float) and not math.isfinite(each) for each in tree_leaves(given)):
            return
        in_backward = _in_backward()
        layer, micro_batch = self._behind if in_backward else (self._layer(), self._micro_batch)
        wrong = next(each for each in tree_leaves(result) if level(each))
        self.found.append(
            _origin(
                "backward" if in_backward else "forward",
                wrong,
                micro_batch=micro_batch,
                layer=layer,
                operator=str(func).removesuffix(".default"),
                node=_node() if in_backward else "",
                order=self.order - 1,
                largest=largest or _largest(given),
            )
        )
        self._is_stopped = len(self.found) >= MOST

    # Layers

    def _layer(self) -> str:
        return next((name for module, _ in reversed(self._stack) if (name := self.names.get(module, ""))), "")

    def _enter(self, module: nn.Module, args: Any) -> None:
        if module not in self.names:
            return
        if not self._stack and not _in_backward():
            name = self.names[module]
            self._micro_batch = self._calls.get(name, 0)
            self._calls[name] = self._micro_batch + 1
        self._stack.append((module, self.order))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if module not in self.names:
            return
        _, first = self._stack.pop()
        in_backward = _in_backward()  # computed again
        micro_batch = self._behind[1] if in_backward else self._micro_batch
        name = self.names[module]
        if self.bad is None and levels(output) and not levels(args):
            wrong = next(each for each in tree_leaves(output) if level(each))
            phase = "backward" if in_backward else "forward"
            self.bad = _origin(phase, wrong, micro_batch=micro_batch, layer=name, order=first), first, self.order
        for each in tree_leaves(output):
            if isinstance(each, Tensor) and each.requires_grad and not hasattr(each, "_watched"):
                each._watched = True  # type: ignore[attr-defined]
                each.register_hook(self._gradient_of(name, micro_batch))

    def _gradient_of(self, name: str, micro_batch: int) -> Callable[[Tensor], None]:
        def came(gradient: Tensor) -> None:
            self._behind = name, micro_batch

        return came


def _origin(phase: str, wrong: Tensor, **where: Any) -> Origin:
    plain = wrong.detach()
    return Origin(
        phase,
        value="NaN" if bool(plain.isnan().any()) else "Inf",
        wrong=int((~plain.isfinite()).sum()),
        count=plain.numel(),
        shape=tuple(plain.shape),
        dtype=str(plain.dtype).removeprefix("torch."),
        **where,
    )


def _largest(values: Any) -> float:
    """Return the largest magnitude of the floating-point tensors in containers, of finite elements."""
    found = [each.detach() for each in tree_leaves(values) if isinstance(each, Tensor) and each.is_floating_point()]
    sizes = [float(each.abs().nan_to_num(0.0, 0.0, 0.0).max()) for each in found if each.numel()]
    return max(sizes, default=0.0)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _node() -> str:
    node = torch._C._current_autograd_node()
    return str(node.name()) if node is not None else ""


def wrong_weight(chunks: Sequence[nn.Module]) -> Origin | None:
    """Return the first weight of this rank that is not finite."""
    for chunk in chunks:
        for name, each in chunk.named_parameters():
            # Under ZeRO 3 the memory of a weight is there only while its layer runs.
            if each.untyped_storage().nbytes() and level(each):
                return _origin("weights", each, layer=name)
    return None


@contextmanager
def watched(chunks: Sequence[nn.Module], *, is_compiled: bool = False) -> Iterator[OperatorWatch]:
    """Watch the block, a step of ``chunks``; what was compiled runs eagerly in it."""
    watch = OperatorWatch(chunks)
    with ExitStack() as stack:
        if is_compiled:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for hook in (register_module_forward_pre_hook(watch._enter), register_module_forward_hook(watch._leave)):
            stack.callback(hook.remove)
        stack.enter_context(watch)
        yield watch
