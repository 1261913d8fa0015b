"""From the settings to the optimizer that an engine steps."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
from torch import nn

from megads.config.optimizers import OPTIMIZERS
from megads.config.schema import RunConfig
from megads.config.settings.optimizer import OptimConfig
from megads.engine.base import is_copy, whole_shape
from megads.engine.optim.whole_parameters import Make, WholeOptimizer
from megads.errors import DependencyError

MATRICES, OTHERS, VECTORS = "matrices", "others", "vectors"
"""Labels of parameter groups: what a matrix rule steps, what else decays, and biases and norms."""


def labels(run: RunConfig) -> tuple[str, ...]:
    """Return the labels of the parameter groups that the whole model has; a pipeline stage may have fewer."""
    return (MATRICES, OTHERS, VECTORS) if OPTIMIZERS[run.optim.optimizer].rest else (OTHERS, VECTORS)


def parameter_groups(module: nn.Module, run: RunConfig) -> list[dict[str, Any]]:
    """Return the optimizer's groups: matrices decay, biases and norms (one dimension) do not.

    Each has ``params``, ``label``, ``decays`` and ``weight_decay``. Where only matrices of layers are for the
    optimizer's rule, they are a group of their own; embeddings and the output layer are not among
    them.
    """
    found: dict[str, list[nn.Parameter]] = {label: [] for label in labels(run)}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or is_copy(parameter):
            continue
        if len(whole_shape(parameter)) < 2:
            found[VECTORS].append(parameter)
        else:
            found[MATRICES if MATRICES in found and name.startswith("layers.") else OTHERS].append(parameter)
    return [group_of(label, parameters, run) for label, parameters in found.items() if parameters]


def group_of(label: str, parameters: list[nn.Parameter], run: RunConfig) -> dict[str, Any]:
    """Return the optimizer's group of ``label``."""
    decay = 0.0 if label == VECTORS else run.optim.weight_decay
    return {"params": parameters, "label": label, "decays": label != VECTORS, "weight_decay": decay}


def make_optimizer(run: RunConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Return the optimizer of ``run`` that steps ``groups``, as :func:`group_of` makes them.

    One whose rule sees whole tensors or matrices is a :class:`WholeOptimizer` and has to be
    attached once the engine is made.

    Raises:
        DependencyError: its package is missing.
    """
    name = run.optim.optimizer
    row, make = OPTIMIZERS[name], maker(name, run.optim)
    if not row.is_whole:
        optimizer = make(groups)
        if row.is_averaged:
            # What is stepped is where gradients are taken.
            optimizer.train()  # type: ignore[attr-defined]
        return optimizer
    # GaLore's own class steps what is not projected as well.
    rest = maker("adamw", run.optim) if row.rest and not row.matrix_options else make
    makers = {MATRICES: make, OTHERS: rest, VECTORS: rest} if row.rest else {OTHERS: make, VECTORS: make}
    options = {MATRICES: row.matrix_arguments(run.optim)}
    return WholeOptimizer(groups, makers, options, run.optim.lr, one_by_one=row.one_by_one)


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
    kind, options = load(name), OPTIMIZERS[name].arguments(optim)

    def make(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: torch.optim.Optimizer = kind(groups, lr=optim.lr, **options)
        return made

    return make
