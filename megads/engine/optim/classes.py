"""The classes of ``megads.config.optimizers``, imported late, and what they are called with."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from megads.config.optimizers import OPTIMIZERS
from megads.config.settings.optimizer import OptimConfig
from megads.errors import DependencyError

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""Makes an optimizer of parameter groups."""


def load(name: str) -> Any:
    """Return the class of the optimizer ``name``.

    Raises:
        DependencyError: its package is missing, or was built for something else.
    """
    row = OPTIMIZERS[name]
    module, _, attribute = row.library.rpartition(".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, OSError) as error:
        ways = "; ".join(need.install for need in row.needs) or "install it"
        raise DependencyError(f"OPT={name} needs {row.library} ({error}); {ways}, or use OPT={row.instead}") from None


def maker(name: str, optim: OptimConfig) -> Make:
    """Return what makes the optimizer ``name`` with the settings of ``optim``."""
    kind, options = load(name), _OPTIONS[name](optim)

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: torch.optim.Optimizer = kind(groups, lr=optim.lr, **options)
        return made

    return make


def matrix_options(optim: OptimConfig) -> dict[str, Any]:
    """Return what a group of matrices that are to be stepped by the matrix rule has besides its parameters."""
    if not optim.optimizer.startswith("galore"):
        return {}
    return {
        "rank": optim.galore_rank,
        "update_proj_gap": optim.galore_interval,
        "scale": optim.galore_scale,
        "proj_type": optim.galore_proj,
    }


Options = Callable[[OptimConfig], Mapping[str, Any]]


def _adam(optim: OptimConfig) -> dict[str, Any]:
    return {"betas": (optim.adam_beta1, optim.adam_beta2), "eps": optim.adam_eps}


def _with(options: Options, **more: Any) -> Options:
    return lambda optim: {**options(optim), **more}


def _sgd(optim: OptimConfig) -> dict[str, Any]:
    return {"momentum": optim.sgd_momentum}


def _sophiag(optim: OptimConfig) -> dict[str, Any]:
    return {"betas": (optim.sophia_beta1, optim.sophia_beta2), "rho": optim.sophia_rho}


def _lion(optim: OptimConfig) -> dict[str, Any]:
    return {"betas": (optim.lion_beta1, optim.lion_beta2), "weight_decouple": True}


def _muon(optim: OptimConfig) -> dict[str, Any]:
    return {
        "momentum": optim.muon_momentum,
        "ns_steps": optim.muon_ns_steps,
        "adjust_lr_fn": optim.muon_adjust_lr,
    }


def _shampoo(optim: OptimConfig) -> dict[str, Any]:
    return {
        "momentum": optim.shampoo_momentum,
        "preconditioning_compute_steps": optim.shampoo_interval,
        "matrix_eps": optim.shampoo_eps,
        "weight_decouple": True,
    }


def _soap(optim: OptimConfig) -> dict[str, Any]:
    return {
        **_adam(optim),
        "precondition_frequency": optim.soap_interval,
        "max_precondition_dim": optim.soap_max_dim,
    }


_GALORE = _with(_adam, no_deprecation_warning=True)
_OPTIONS: Mapping[str, Options] = {
    "adamw": _with(_adam, fused=True),
    "adam": _with(_adam, fused=True),
    "adam8bit": _adam,
    "adamwschedulefree": _with(_adam, foreach=False),
    "sgd": _sgd,
    "sgdschedulefree": _with(_sgd, foreach=False),
    "sophiag": _sophiag,
    "lion": _lion,
    "adopt": _with(_adam, weight_decouple=True),
    "lamb": _with(_adam, weight_decouple=True),
    "muon": _muon,
    "shampoo": _shampoo,
    "soap": _soap,
    "galoreadamw": _GALORE,
    "galoreadamw8bit": _adam,
    "galoreadamw8bitperlayer": _adam,
    "ds.adamw": _with(_adam, adamw_mode=True),
    "ds.fusedlamb": _adam,
    "apex.adam": _with(_adam, adam_w_mode=True),
    "apex.sgd": _sgd,
    "ipex.lamb": _with(_adam, fused=False),
    "ipex.fusedlamb": _with(_adam, fused=True),
}
