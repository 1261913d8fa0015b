"""``FLOPS_PROFILE``: counts the matrix products of a step module by module, and writes them next to the formula."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from megads.comm.groups import Groups
from megads.config.schema import RunConfig
from megads.config.stages import chunk_steps
from megads.families.encoder_decoder import has_decoder
from megads.plan.flops import products
from megads.plan.parts.encoder_decoder import again_products, layer_products, logit_products
from megads.text.units import count

Formula = Callable[..., int]

FUSED = (
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    "_scaled_dot_product_fused_attention_overrideable",
)
"""Torch's attention kernels; each also with ``_backward``. The registry lacks some, and counts the
products that a backward kernel repeats inside itself."""


def _attention(query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    """Return the FLOPs of both products over the full square; heads may share keys."""
    batch, heads, length, width = query.shape
    return 2 * batch * heads * length * key.shape[-2] * (width + value.shape[-1])


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> int:
    return 2 * _attention(query, key, value)


def formulas() -> dict[Any, Formula]:
    """Return operator -> its FLOPs by inputs and ``out_val``."""
    found: dict[Any, Formula] = dict(flop_registry)
    for name in FUSED:
        for which, formula in ((name, _attention), (f"{name}_backward", _attention_backward)):
            if operator := getattr(torch.ops.aten, which, None):
                found[operator] = formula
    return found


@dataclass
class Count:
    """What one module did in its forward passes, those of modules inside included."""

    calls: int = 0  # also those that repeat it in the backward pass
    flops: int = 0  # of its matrix products
    seconds: float = 0.0  # by the host's clock


@dataclass
class Counted:
    """What one step did on this rank, in FLOPs."""

    forward: int = 0  # of first forward passes
    again: int = 0  # of forward passes that were done again in the backward pass
    backward: int = 0
    modules: dict[str, Count] = field(default_factory=dict)  # by name, "" for the whole; in the order of the model
    seconds: float = 0.0  # of the block that was counted


@contextmanager
def counted(model: Sequence[nn.Module], synchronize: Callable[[], None]) -> Iterator[Counted]:
    """Count what runs in the block, for each module of a ``model``; the numbers it computes stay as they are.

    ``model`` is in parts without a name in common, such as the chunks of a pipeline stage.
    ``synchronize`` waits for the device, so that a module's time is its own.
    """
    named = [each for part in model for each in part.named_modules()]
    found = Counted(modules={name: Count() for name, _ in named})
    inside: list[tuple[str, float]] = []

    def enter(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            synchronize()
            inside.append((name, time.perf_counter()))

        return hook

    def leave(*_: Any) -> None:
        synchronize()
        name, began = inside.pop()
        found.modules[name].calls += 1
        found.modules[name].seconds += time.perf_counter() - began

    hooks: list[Any] = []
    for name, each in named:
        hooks.append(each.register_forward_pre_hook(enter(name)))
        # Also when torch's checkpoint stops a module in the middle, because it has all it needs.
        hooks.append(each.register_forward_hook(leave, always_call=True))
    began = time.perf_counter()
    try:
        with _Counting(found, inside, next(model[0].parameters()).device):
            yield found
        synchronize()
    finally:
        found.seconds = time.perf_counter() - began
        for hook in hooks:
            hook.remove()


class _Counting(TorchDispatchMode):
    """Sees every operator, forwards and backwards, on whatever thread autograd calls it."""

    def __init__(self, found: Counted, inside: list[tuple[str, float]], device: torch.device):
        super().__init__()
        self.found, self.inside, self.formulas = found, inside, formulas()
        self.key = getattr(torch._C.DispatchKey, torch._C._dispatch_key_for_device(device.type))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = self.formulas.get(func._overloadpacket)
        # An operator that is made of others comes whole without autograd. One that has a kernel of its own on this
        # device may have a decomposition too (silu_backward), which rounds otherwise: it must not be taken apart.
        has_kernel = func.has_kernel_for_dispatch_key(self.key)
        if formula is None and not has_kernel and func is not torch.ops.prim.device.default:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.add(formula(*args, **kwargs, out_val=result))
        return result

    def add(self, flops: int) -> None:
        """Count an operator where it belongs."""
        # Not public: the number of the backward pass that this thread is in, -1 outside.
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward and not self.inside and not torch.is_grad_enabled():
            self.found.backward += flops
            return
        if in_backward:
            self.found.again += flops
        else:
            self.found.forward += flops
        for name in {name for name, _ in self.inside}:
            self.found.modules[name].flops += flops


NOTE = """\
Counted: matrix products, on this rank, of all micro-batches of the step. Attention kernels count both products
over the full square, in the backward pass twice that, whatever they leave out or repeat inside. The formula gives
this rank an even share of its stage. Not seen: kernels of the flash-attn package. Torch's checkpoint function
leaves out the last product of what it computes again, when nobody needs the result.
Times are the host's, with the device waited for at every module and each operator looked at: compare them with one
another, not with a step that nobody counts.
"""


@dataclass(frozen=True)
class Expected:
    """FLOPs that the formula gives this rank for one step."""

    forward: float
    again: float
    backward: float  # twice the forward pass


def expected(run: RunConfig, groups: Groups, batch: int) -> Expected:
    """Return what the formula of ``megads.plan.flops`` gives this rank for a step of ``batch`` samples."""
    model, given = run.model, run.recompute
    if has_decoder(model):
        return _expected_of_both(run, groups, batch)
    parts = products(model, model.seq_length)
    chunks = chunk_steps(run)[groups.pipe_rank]
    sizes = [sum(0 < step <= model.num_layers for step in steps) for steps in chunks]
    layers = sum(sizes)
    head = parts.logits if model.num_layers + 1 in chunks[-1] else 0
    again = 0
    if given.granularity == "selective":
        again = layers * parts.core
    elif given.granularity == "full":
        most = given.num_layers if given.method == "block" else layers
        again = sum(min(most, size) for size in sizes) * parts.layer
    share = batch * model.seq_length / groups.data_size / groups.seq_size / groups.tensor_size
    forward = 2 * share * (layers * parts.layer + head)
    return Expected(forward, 2 * share * again, 2 * forward)


def _expected_of_both(run: RunConfig, groups: Groups, batch: int) -> Expected:
    """Return what an encoder with a decoder should compute."""
    layers, chunks = layer_products(run.model), chunk_steps(run)[groups.pipe_rank]
    mine = sum(layers[step - 1].whole for steps in chunks for step in steps if 0 < step <= len(layers))
    head = logit_products(run.model) if len(layers) + 1 in chunks[-1] else 0
    share = batch / groups.data_size / groups.seq_size / groups.tensor_size
    forward = 2 * share * (mine + head)
    return Expected(forward, 2 * share * again_products(run, layers, chunks), 2 * forward)


def profile_text(found: Counted, formula: Expected, depth: int, title: str) -> str:
    """Return the table of what ran and what should have; ``depth`` levels of modules are shown, -1: all."""
    total = found.forward + found.again + found.backward
    lines = [title, "", f"{'':10}{'counted':>16}{'formula':>16}  difference"]
    rows = (
        ("forward", found.forward, formula.forward),
        ("again", found.again, formula.again),
        ("backward", found.backward, formula.backward),
        ("all", total, formula.forward + formula.again + formula.backward),
    )
    for name, ran, should in rows:
        difference = f"{(ran - should) / should:+.2%}" if should else ("none" if not ran else "+")
        lines.append(f"{name:10}{ran:16.0f}{should:16.0f}  {difference}")
    width = max([len(_shown(name)) for name in found.modules] + [6])
    lines += ["", f"{'module':{width}} {'calls':>6} {'forward':>9} {'share':>6} {'ms':>9} {'FLOP/s':>8}"]
    lines += list(_modules(found, depth, width))
    return "\n".join([*lines, "", NOTE])


def _shown(name: str) -> str:
    if not name:
        return "model"
    parts = name.split(".")
    # The dictionary that holds the layers never runs, so it has no line of its own.
    return "  " * len(parts) + ".".join(parts[-2:] if parts[-1].isdigit() else parts[-1:])


def _modules(found: Counted, depth: int, width: int) -> Iterator[str]:
    forward = found.forward + found.again
    for name, each in found.modules.items():
        if (depth >= 0 and bool(name) + name.count(".") > depth) or not (each.calls or each.flops):
            continue
        share = each.flops / forward if forward else 0.0
        rate = count(each.flops / each.seconds) if each.seconds else "-"
        yield (
            f"{_shown(name):{width}} {each.calls:6} {count(each.flops):>9} {share:6.1%} "
            f"{1000 * each.seconds:9.3f} {rate:>8}"
        )
