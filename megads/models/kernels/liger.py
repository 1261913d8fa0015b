"""Norms, gated activations, RoPE and the loss by kernels of the package liger-kernel, which Triton compiles.

Each is compared with the eager form at its first call for a width, result and gradients, and stays eager where it
differs or cannot run. What liger has no kernel for stays eager as well: :func:`use_liger` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import megads.timing.collectives as dist
from megads.comm.groups import Groups
from megads.errors import DependencyError
from megads.models.attention import Attention
from megads.models.gpt import GPT
from megads.models.kernels.compiled import Say, _results, _same, disagreement, failed_ranks
from megads.models.kernels.probe import in_a_line
from megads.models.layers import MLP, GatedMLP, LayerNorm, RMSNorm, SplitRMSNorm
from megads.models.rope import Rotary, TokenPositions, rows
from megads.parallel.collectives import with_summed_gradient
from megads.parallel.loss import whole_cross_entropy
from megads.storage.resources import pip_install


@dataclass(frozen=True)
class Liger:
    """The package's functions that are used, and the errors with which kernels fail to be built."""

    rms_norm: Callable[..., Tensor]
    layer_norm: Callable[..., Tensor]
    silu_gated: Callable[..., Tensor]
    gelu_gated: Callable[..., Tensor]
    rope_forward: Callable[..., tuple[Tensor, ...]]
    rope_backward: Callable[..., tuple[Tensor, Tensor]]
    cross_entropy: Callable[..., tuple[Tensor, ...]]
    errors: tuple[type[Exception], ...]


def load_liger() -> Liger:
    """Return the package's functions.

    Raises:
        DependencyError: it is not installed, or too old.
    """
    try:
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
        from liger_kernel.ops.geglu import LigerGELUMulFunction
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.rope import rope_backward, rope_forward
        from liger_kernel.ops.swiglu import LigerFusedGateUpSiLUMulFunction
        from triton.errors import TritonError
    except ImportError as problem:
        raise DependencyError(
            f"KERNELS=liger needs the package liger-kernel 0.8.5 or newer ({problem}); "
            f"{pip_install('liger-kernel')}, or use KERNELS=compiled"
        ) from None
    return Liger(
        LigerRMSNormFunction.apply,
        LigerLayerNormFunction.apply,
        LigerFusedGateUpSiLUMulFunction.apply,
        LigerGELUMulFunction.apply,
        rope_forward,
        rope_backward,
        LigerCrossEntropyFunction.apply,
        (RuntimeError, TritonError),
    )


class Checked:
    """A function and a kernel that does the same, which is used from the first call on where it agrees.

    Args:
        eager: of modules, tensors and numbers; returns one tensor or several.
        kernel: the same.
        name: in messages.
        errors: with which a kernel fails.
        groups: ranks of ``tensor`` and ``seq`` make the same calls and decide together.
        say: takes a line for the log.
    """

    def __init__(
        self,
        eager: Callable[..., Any],
        kernel: Callable[..., Any],
        name: str,
        errors: tuple[type[Exception], ...],
        groups: Groups,
        say: Say,
    ):
        self.eager, self.kernel, self.name, self.errors = eager, kernel, name, errors
        self.groups, self.say = groups, say
        self.known: set[Any] = set()
        self.is_eager = False

    def __call__(self, *args: Any) -> Any:
        """Return ``eager(*args)`` by whichever of both is right."""
        if not self.is_eager:
            x = next(each for each in args if isinstance(each, Tensor))
            key = torch.is_grad_enabled(), x.dtype, x.shape[-1]
            if key not in self.known:
                self._check(args, x)
                self.known.add(key)
        return (self.eager if self.is_eager else self.kernel)(*args)

    def _check(self, args: Sequence[Any], x: Tensor) -> None:
        eager, kernel = partial(_joined, self.eager), partial(_joined, self.kernel)
        # Ranks wait for one another in the comparison: each has run its kernel, with nothing sent, before any compares.
        problem = self._cannot_run(kernel, args)
        failed = failed_ranks(problem, args, self.groups)
        if not failed:
            problem = disagreement(eager, kernel, args)
            failed = failed_ranks(problem, args, self.groups)
        if failed:
            self.is_eager = True
            self.say(f"{self.name} stays eager: {problem or 'it does not agree on another rank'}")
        elif not self.known:
            self.say(f"{self.name} by liger-kernel agrees with eager for {list(x.shape)}")

    def _cannot_run(self, kernel: Callable[..., Tensor], args: Sequence[Any]) -> str:
        try:
            with dist.nothing_sent(), torch.autograd.graph.saved_tensors_hooks(_same, _same):
                _results(kernel, args)
        except self.errors as error:
            return f"its kernel does not run: {in_a_line(error)}"
        return ""


def _joined(function: Callable[..., Any], *args: Any) -> Tensor:
    found = function(*args)
    return found if isinstance(found, Tensor) else torch.cat([each.flatten() for each in found])


def use_liger(modules: Sequence[GPT], say: Say, liger: Liger | None = None) -> None:
    """Have norms, gated activations, RoPE and the loss of ``modules``, the model or its stages here, run by liger.

    ``say`` takes a line for the log. ``liger``: None: the package.
    """
    liger = liger or load_liger()
    groups = modules[0].context.groups

    def checked(eager: Callable[..., Any], kernel: Callable[..., Any], name: str) -> Checked:
        return Checked(eager, partial(kernel, liger), name, liger.errors, groups, say)

    norms = {
        RMSNorm: checked(RMSNorm.forward, _rms_norm, "RMSNorm"),
        LayerNorm: checked(LayerNorm.forward, _layer_norm, "LayerNorm"),
    }
    gated = checked(GatedMLP.gated, _gated, "the gated activation")
    loss = checked(whole_cross_entropy, _cross_entropy, "the loss")
    rotaries: dict[Rotary, LigerRotary] = {}
    for each in (part for module in modules for part in module.modules()):
        if type(each) in norms:
            each.forward = partial(norms[type(each)], each)
        elif isinstance(each, GatedMLP):
            each.gated = partial(gated, each)  # type: ignore[method-assign]
        elif isinstance(each, Attention) and each.rotary is not None:
            inner = each.rotary
            if inner not in rotaries:
                rotaries[inner] = LigerRotary(inner, checked(_plain_rotation(inner), _rotation, "RoPE"))
            each.rotary = rotaries[inner]
    for module in modules:
        module.cross_entropy = loss
    if without := ", ".join(_without(modules)):
        say(f"liger-kernel has no kernel for, so eager stay: {without}")


def _without(modules: Sequence[GPT]) -> list[str]:
    """Return what of ``modules`` stays eager."""
    parts = [part for module in modules for part in module.modules()]
    names = {
        "norms over heads that are split over ranks": any(isinstance(each, SplitRMSNorm) for each in parts),
        "activations without a gate": any(isinstance(each, MLP) for each in parts),
        "RoPE behind norms of heads": any(
            isinstance(each, Attention) and each.rotary is not None and each.q_norm is not None for each in parts
        ),
        "the loss in chunks": any(module.recompute.loss_chunk for module in modules),
        "the loss of split logits": modules[0].context.groups.tensor is not None,
    }
    return [name for name, is_there in names.items() if is_there]


def _rms_norm(liger: Liger, norm: RMSNorm, x: Tensor) -> Tensor:
    (weight,) = with_summed_gradient(norm.weight)
    # As torch: all of it in float32; and the gradient that comes in is left as it is.
    return liger.rms_norm(x, weight, norm.epsilon, 0.0, "gemma", False)


def _layer_norm(liger: Liger, norm: LayerNorm, x: Tensor) -> Tensor:
    weight, bias = with_summed_gradient(norm.weight, norm.bias)
    return liger.layer_norm(x, weight, bias, norm.epsilon)


def _gated(liger: Liger, mlp: GatedMLP, both: Tensor) -> Tensor:
    if mlp.activation == "geglu_tanh":
        # Its backward pass writes into what it was given.
        gate, up = (_own(each) for each in both.chunk(2, dim=-1))
        return liger.gelu_gated(gate, up)
    return liger.silu_gated(both.flatten(0, -2)).view(*both.shape[:-1], -1)  # rows, for which its gradient is right


def _cross_entropy(liger: Liger, logits: Tensor, labels: Tensor, real: int) -> Tensor:
    """Return what :func:`whole_cross_entropy` does; float32 logits become their gradient in place."""
    flat = logits[..., :real].flatten(0, -2)
    wide = flat.float() if flat.dtype != torch.float32 else flat.clone()
    return liger.cross_entropy(wide, labels.flatten(), None, -100, 0.0, 0.0, "none")[0].view(labels.shape)


class LigerRotary(Rotary):
    """:class:`Rotary` with queries and keys rotated by one kernel; ``rotate`` and single tokens as they were."""

    def __init__(self, inner: Rotary, rotation: Checked):
        super().__init__(inner.frequencies)
        self.rotation = rotation
        self._wide: dict[Tensor, Tensor] = {}

    def __call__(
        self, heads: Tensor, num_heads: int, num_kv_heads: int, where: TokenPositions | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what :meth:`Rotary.__call__` does."""
        where = where or TokenPositions(0, heads.shape[1])
        if heads.shape[1] == 1 and not torch.is_grad_enabled():
            return super().__call__(heads, num_heads, num_kv_heads, where)
        # In float32 the kernel computes in it: halves are rounded once, as torch rounds them.
        cos, sin = (self._widened(each) for each in self._tables_at(heads, where))
        q, k, v = self.rotation(heads, *rows(cos, sin, where.positions), where, num_heads, num_kv_heads)
        return q, k, v

    def _widened(self, table: Tensor) -> Tensor:
        if table not in self._wide:
            self._wide[table] = table.float()
        return self._wide[table]


def _plain_rotation(rotary: Rotary) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def rotated(
        heads: Tensor, cos: Tensor, sin: Tensor, where: TokenPositions, num_heads: int, num_kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        return rotary(heads, num_heads, num_kv_heads, where)

    return rotated


def _rotation(
    liger: Liger, heads: Tensor, cos: Tensor, sin: Tensor, where: TokenPositions, num_heads: int, num_kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    # [S, 1, D] or [B, S, 1, D] become [1, S, D] or [B, S, D].
    cos, sin = (each.squeeze(-2).view(-1, heads.shape[1], each.shape[-1]) for each in (cos, sin))
    q, k, v = _SplitAndRotate.apply(heads, cos, sin, num_heads, num_kv_heads, liger)
    return q, k, v


class _SplitAndRotate(Function):
    """Rotates ``[B, S, heads, D]``; the gradient is rotated back and joined in one copy."""

    @staticmethod
    def forward(
        ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor, num_heads: int, num_kv_heads: int, liger: Liger
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.liger = liger
        q, k, v = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=2)
        q, k = _rotated(liger.rope_forward, q, k, cos, sin)
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> tuple[Tensor | None, ...]:
        grad_q, grad_k = _rotated(ctx.liger.rope_backward, grad_q, grad_k, *ctx.saved_tensors)
        return torch.cat([grad_q, grad_k, grad_v], dim=2), None, None, None, None, None


def _rotated(rope: Callable[..., tuple[Tensor, ...]], q: Tensor, k: Tensor, *tables: Tensor) -> tuple[Tensor, Tensor]:
    """Return both rotated by ``rope``, which writes into what it gets and takes ``[B, heads, S, D]``."""
    q, k, *_ = rope(_own(q).transpose(1, 2), _own(k).transpose(1, 2), *tables)
    return q.transpose(1, 2), k.transpose(1, 2)


def _own(x: Tensor) -> Tensor:
    """Return a contiguous copy of ``x``."""
    return x.clone(memory_format=torch.contiguous_format)
