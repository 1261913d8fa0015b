"""Layers and the loss compiled by torch: each function once, for all layers, for the few shapes a run has.

A layer's number and its weights are no part of the compiled code, so the first layer's code serves all. What an
engine does around a layer (hooks that gather weights, recomputation, pipeline stages) stays outside. Code is
compiled for fixed shapes, when they come for the first time, and checked: where its results are not those of the
eager layer, or torch cannot compile it, the run stays eager and says so. So does a call with shapes beyond
:data:`MOST_SHAPES`: nothing is compiled again and again unnoticed. Ranks that talk inside of a layer agree that each
has compiled it before any runs it.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.models.gpt import GPT
from megads.models.kernels.probe import in_a_line
from megads.parallel.documents import Documents
from megads.parallel.opaque import name_group

Say = Callable[[str], None]

MOST_SHAPES = 6
"""Shapes that one function is compiled for: those of training and of evaluation, and of a smaller last batch."""

MOST_AGAIN = 3
"""How often a function may be compiled again for shapes that it was compiled for: something else has changed."""

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""How far the compiled result and gradients may be from the eager ones, relative to their norm."""


class Compiled:
    """A function whose calls run as compiled code, if torch can compile it and the results agree.

    Args:
        function: of modules, tensors and other objects; it returns one tensor, of its first tensor's type or wider.
        name: in messages.
        groups: ranks of ``tensor`` and ``seq`` make the same calls and decide together.
        say: takes a line for the log.
        backend: of the compiler.
        warn: takes a line of what went wrong on this rank and not on all others; None: ``say`` does.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        name: str,
        groups: Groups,
        say: Say,
        backend: str = "inductor",
        warn: Say | None = None,
    ):
        self.function, self.name, self.groups, self.say = function, name, groups, say
        self.warn = warn or say
        self.compiled: Callable[..., Tensor] | None = torch.compile(
            function, backend=backend, dynamic=False, fullgraph=True
        )
        self.known: set[Any] = set()
        self.beyond: set[Any] = set()
        self.is_checked = False
        self.again = 0
        self._structures: dict[nn.Module, int] = {}

    def __call__(self, *args: Any) -> Tensor:
        """Return ``function(*args)``."""
        if self.compiled is None or not _has_fixed_shapes(args):
            return self.function(*args)
        key = (torch.is_grad_enabled(), *map(self._kind, args))
        if key in self.known:
            return self._again(args)
        if key in self.beyond:
            return self.function(*args)
        if len(self.known) >= MOST_SHAPES:
            self.beyond.add(key)
            self.say(f"{self.name} runs eagerly for {_shown(args)}: compiled for {MOST_SHAPES} other shapes already")
            return self.function(*args)
        self.known.add(key)
        with warnings.catch_warnings():
            # The compiler looks at the gradient of every input, also of one that has none.
            warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf")
            return self._first(args)

    def _again(self, args: Sequence[Any]) -> Tensor:
        assert self.compiled is not None
        graphs = _count("stats", "unique_graphs")
        result = self.compiled(*args)
        if _count("stats", "unique_graphs") != graphs:
            self.again += 1
            self.say(f"compiled {self.name} again for {_shown(args)}: something besides shapes has changed")
            if self.again >= MOST_AGAIN:
                self._give_up(f"it was compiled {self.again} times for the same shapes", self.say)
        return result

    def _first(self, args: Sequence[Any]) -> Tensor:
        """Compile for the shapes of ``args``; return the result of whichever form is right."""
        assert self.compiled is not None
        started, hits = time.perf_counter(), _cache_hits()
        # A rank that runs compiled code waits for the others inside of it: each has all of its code before any runs it.
        problem = self._is_uncompilable(args)
        failed = failed_ranks(problem, args, self.groups)
        if not failed and torch.is_grad_enabled() and not self.is_checked:
            problem = disagreement(self.function, self.compiled, args)
            failed = failed_ranks(problem, args, self.groups)
        if failed:
            is_alone = bool(problem) and failed < self._ranks()
            self._give_up(problem or "another rank does not compile it", self.warn if is_alone else self.say)
            return self.function(*args)
        result = self.compiled(*args)
        self.is_checked = self.is_checked or torch.is_grad_enabled()
        cached = " from the cache" if _cache_hits() > hits else ""
        self.say(f"compiled {self.name} for {_shown(args)} in {time.perf_counter() - started:.1f} s{cached}")
        return result

    def _is_uncompilable(self, args: Sequence[Any]) -> str:
        """Compile both directions for the shapes of ``args`` and send nothing; return why that cannot be done."""
        assert self.compiled is not None
        # What recomputation would note is none of its business.
        with dist.nothing_sent(), torch.autograd.graph.saved_tensors_hooks(_same, _same):
            with torch.no_grad():  # tables that are made once are made, which a graph would do each time
                self.function(*args)
            try:
                if torch.is_grad_enabled():
                    _results(self.compiled, args)
                self.compiled(*args)
            except Exception as error:  # of any kind: of the compiler, of the C++ compiler, of the cache's folder
                return f"torch cannot compile it: {in_a_line(error)}"
        return ""

    def _give_up(self, reason: str, say: Say) -> None:
        self.compiled = None
        say(f"{self.name} stays eager: {reason}")

    def _ranks(self) -> int:
        return self.groups.tensor_size * self.groups.seq_size

    def _kind(self, value: Any) -> Any:
        """Return what a graph is recorded for, as far as it depends on an argument."""
        if isinstance(value, Tensor):
            return value.shape, value.stride(), value.dtype, value.requires_grad
        if isinstance(value, nn.Module):
            if value not in self._structures:
                self._structures[value] = hash(tuple(name for name, _ in value.named_parameters()))
            return self._structures[value], value.training
        if dataclasses.is_dataclass(value):
            return type(value), *(self._kind(getattr(value, field.name)) for field in dataclasses.fields(value))
        return value if isinstance(value, (int, float, str)) else type(value)


def disagreement(eager: Callable[..., Tensor], other: Callable[..., Tensor], args: Sequence[Any]) -> str:
    """Return how results and gradients of ``other(*args)`` differ from eager ones; empty: within the tolerance."""
    names = ("its result", "a gradient")
    # What recomputation would note is none of its business.
    with torch.autograd.graph.saved_tensors_hooks(_same, _same):
        wanted_ones, our_ones = _results(eager, args), _results(other, args)
    for place, (wanted, ours) in enumerate(zip(wanted_ones, our_ones, strict=True)):
        if wanted is None or ours is None:
            if wanted is not ours:
                return "it has gradients that eager has not, or the reverse"
            continue
        scale = torch.linalg.vector_norm(wanted, dtype=torch.float64)
        away = float(torch.linalg.vector_norm(ours.double() - wanted.double()) / scale.clamp(min=1e-30))
        if not away <= TOLERANCES[wanted.dtype]:
            return f"{names[place > 0]} is {away:.1e} away from eager's, relative to its norm"
    return ""


def failed_ranks(problem: str, args: Sequence[Any], groups: Groups) -> int:
    """Return how many of the ranks that make the same calls, those of ``tensor`` and ``seq``, have a problem."""
    count = torch.tensor(float(bool(problem)), device=next(_tensors(args)).device)
    for group in (groups.tensor, groups.seq):
        if group is not None:
            dist.all_reduce(count, group=group)
    return int(count.item())


def compile_layers(
    modules: Sequence[GPT], say: Say, backend: str = "inductor", warn: Say | None = None
) -> list[Compiled]:
    """Have every layer of ``modules``, the model or its stages on this rank, and their loss run as compiled code.

    ``say`` takes a line for the log whenever something was compiled, or was not; ``warn`` one of what only some of the
    ranks cannot do, this one among them.
    """
    # Shapes are counted here.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 10 * MOST_SHAPES)
    groups = modules[0].context.groups
    name_group(groups.tensor, "tensor")
    name_group(groups.seq, "seq")
    shared: dict[type, Compiled] = {}
    for module in modules:
        for layer in module.layers.values():
            kind = type(layer)
            if kind not in shared:
                shared[kind] = Compiled(kind.forward, kind.__name__, groups, say, backend, warn)
            layer.forward = _forward(shared[kind], layer)
    loss = Compiled(modules[0].cross_entropy, "the loss", groups, say, backend, warn)
    for module in modules:
        module.cross_entropy = loss
    return [*shared.values(), loss]


def _forward(shared: Compiled, layer: nn.Module) -> Callable[..., Tensor]:
    def forward(x: Tensor, documents: Documents | None = None, draws: object = None) -> Tensor:
        # Draws have a number of their own in every micro-batch, and nothing to do: there is no dropout.
        return shared(layer, x, documents)

    return forward


def _has_fixed_shapes(args: Sequence[Any]) -> bool:
    """Return whether calls like this one have the same shapes again: no generation, no stacks of documents."""
    documents = next((each for each in args if isinstance(each, Documents)), None)
    return documents is None or (documents.cache is documents.texts is documents.segments)


def _results(function: Callable[..., Tensor], args: Sequence[Any]) -> list[Tensor | None]:
    """Return the function's result and the gradients of its activations and of its modules' weights."""
    args = [each.detach().requires_grad_(each.requires_grad) if isinstance(each, Tensor) else each for each in args]
    wanted = [each for each in args if isinstance(each, Tensor) and each.requires_grad]
    wanted += [weight for each in args if isinstance(each, nn.Module) for weight in each.parameters()]
    wanted = [each for each in wanted if each.requires_grad]
    result = function(*args)
    if not result.requires_grad:
        return [result]
    numbers = torch.arange(result.numel(), device=result.device).cos().to(result.dtype).view(result.shape)
    return [result.detach(), *torch.autograd.grad(result, wanted, numbers, allow_unused=True)]


def _same(saved: Tensor) -> Tensor:
    return saved


def _tensors(args: Sequence[Any]) -> Iterator[Tensor]:
    return (each for each in args if isinstance(each, Tensor))


def _shown(args: Sequence[Any]) -> str:
    return f"{list(next(_tensors(args)).shape)}{'' if torch.is_grad_enabled() else ' without gradients'}"


def _count(kind: str, name: str) -> int:
    return int(torch._dynamo.utils.counters[kind][name])


def _cache_hits() -> int:
    return _count("inductor", "fxgraph_cache_hit") + _count("aot_autograd", "autograd_cache_hit")
