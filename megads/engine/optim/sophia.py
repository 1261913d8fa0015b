"""Sophia-G (arXiv 2305.14342, algorithm 3 with the Gauss-Newton-Bartlett estimator)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor


class SophiaG(torch.optim.Optimizer):
    """Steps along the momentum, divided by the diagonal of the Hessian and clipped at 1.

    ``w -= lr * clip(m / max(rho * h, 1e-15), 1)`` with ``m`` the mean of gradients that decays with ``beta1``;
    weight decay is decoupled. ``h`` decays with ``beta2`` towards ``B * g * g`` (algorithm 2), ``g`` being
    the gradient of the mean loss over ``B`` tokens whose labels were drawn from the model itself; it
    moves when a step is taken while :attr:`tokens` is set, and nothing else does.

    Args:
        rho: how much of the Hessian counts, gamma in the paper.

    Attributes:
        tokens: ``B`` while gradients are those of drawn labels; 0: of the data.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.965, 0.99),
        rho: float = 0.04,
        weight_decay: float = 0.0,
    ):
        self.tokens = 0
        super().__init__(params, {"lr": lr, "betas": betas, "rho": rho, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step the weights, or with :attr:`tokens` set the Hessian."""
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
                    state["exp_avg"], state["hessian"] = torch.zeros_like(weight), torch.zeros_like(weight)
                if self.tokens:
                    beta = group["betas"][1]
                    state["hessian"].mul_(beta).addcmul_(weight.grad, weight.grad, value=(1 - beta) * self.tokens)
                    continue
                state["step"] += 1
                mean = state["exp_avg"].lerp_(weight.grad, 1 - group["betas"][0])
                update = mean / (group["rho"] * state["hessian"]).clamp_(min=1e-15)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update.clamp_(-1, 1), alpha=-group["lr"])


def uniforms(seed: tuple[int, int], samples: Iterable[int], length: int) -> Tensor:
    """Return ``[samples, length]`` numbers in [0, 1), float64: those of a sample are its own in every layout."""
    rows = [np.random.Generator(np.random.Philox(key=_key(*seed, sample))).random(length) for sample in samples]
    return torch.from_numpy(np.stack(rows))


def _key(seed: int, step: int, sample: int) -> int:
    return seed << 96 | step << 48 | sample
