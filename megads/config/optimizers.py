"""The optimizers: what each one is, whose code it is, and where it can run. A table, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

Scope = Literal["element", "tensor", "matrix"]
Options = Mapping[str, str | tuple[str, ...]]

ACCELERATORS = ("nvidia", "amd", "intel")
EVERYWHERE = (*ACCELERATORS, "cpu")

_ADAM_FIELDS = ("adam_beta1", "adam_beta2", "adam_eps")
ADAM: Options = {"betas": _ADAM_FIELDS[:2], "eps": "adam_eps"}


@dataclass(frozen=True)
class Needs:
    """A package that is no part of a plain installation."""

    module: str  # what is imported
    install: str  # how to get it
    version: str = ""  # the oldest version that has what is used; empty: any


@dataclass(frozen=True)
class Optimizer:
    """One row of the table."""

    name: str  # value of ``OPT``
    rule: str  # what it does to a weight, in a few words
    library: str  # the class that does it
    # what its rule looks at: each number by itself (``element``), the norm of a whole tensor or a block of it
    # (``tensor``), or a whole matrix. The last two are stepped by one rank that gathers the whole parameter, see
    # ``megads.engine.optim.whole_parameters``
    scope: Scope
    # of ``element``: kinds of state as large as the weights -> what they begin with
    state: dict[str, Literal["zeros", "weight"]] = field(default_factory=dict)
    scalars: tuple[str, ...] = ()  # of ``element``: numbers of a parameter group that belong to the state
    step: Literal["", "int", "tensor"] = ""  # of ``element``: as what it counts the steps of every tensor
    floats: float = 2.0  # of state for each weight, in float32; for the memory estimate
    rest: bool = False  # whether embeddings, output layer, biases and norms are left to AdamW
    devices: tuple[str, ...] = EVERYWHERE  # where it can run
    needs: tuple[Needs, ...] = ()  # packages besides torch and DeepSpeed
    op: str = ""  # of DeepSpeed, that has to be built when DeepSpeed is installed
    offload: bool = True  # whether it can step weights that OFFLOAD_OPTIMIZER keeps on the host
    on_host: bool = False  # whether it can step no others
    instead: str = "adamw"  # value of ``OPT`` that comes closest and runs everywhere
    never: str = ""  # why it cannot run anywhere here; empty: it can
    # argument of the class -> the field of ``optim`` with its value, or several fields; Adam's as default
    options: Options = field(default_factory=lambda: ADAM)
    constants: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the class
    # the same as ``options``, of the group of matrices; the class then steps the rest itself
    matrix_options: Options = field(default_factory=dict)
    reads: tuple[str, ...] = ()  # further fields of ``optim`` that only it reads
    # the field of ``optim`` whose average of iterates it trains with, as schedule-free optimizers do
    averages_by: str = ""
    fixed: tuple[str, ...] = ()  # fields of ``optim`` that its state was made with, and that cannot change on resume
    # whether a matrix is stepped as soon as it is gathered, so that few gradients are held whole
    one_by_one: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether one rank gathers and steps a parameter as a whole."""
        return self.scope != "element"

    @property
    def is_averaged(self) -> bool:
        """Whether training and use want different weights."""
        return bool(self.averages_by)

    @property
    def settings(self) -> tuple[str, ...]:
        """The variables that it reads, and optimizers like it."""
        own = (*self.options.values(), *self.matrix_options.values(), self.reads)
        names = [name for each in own for name in ((each,) if isinstance(each, str) else each)]
        return tuple(dict.fromkeys(name.upper() for name in (*(_ADAM_FIELDS if self.rest else ()), *names)))

    def arguments(self, optim: Any) -> dict[str, Any]:
        """Return what its class is called with besides parameters and LR, by the ``optim`` section of a run."""
        return {**_values(self.options, optim), **self.constants}

    def matrix_arguments(self, optim: Any) -> dict[str, Any]:
        """Return what its group of matrices has besides parameters, by the ``optim`` section of a run."""
        return _values(self.matrix_options, optim)

    @property
    def zero_stages(self) -> tuple[int, ...]:
        """The ZeRO stages it runs under; offload is of partitions, which ZeRO 0 has none of."""
        return (1, 2, 3) if self.on_host else (0, 1, 2, 3)


def _values(options: Options, optim: Any) -> dict[str, Any]:
    return {
        argument: getattr(optim, names) if isinstance(names, str) else tuple(getattr(optim, name) for name in names)
        for argument, names in options.items()
    }


_MOMENTUM: Options = {"momentum": "sgd_momentum"}
_DECOUPLED = {"weight_decouple": True}
_MOMENTS: dict[str, Literal["zeros", "weight"]] = {"exp_avg": "zeros", "exp_avg_sq": "zeros"}
_AVERAGE = ("k", "weight_sum", "lr_max", "scheduled_lr")
_SCHEDULE_FREE = Needs("schedulefree", "pip install schedulefree", "1.4")
_PYTORCH_OPTIMIZER = Needs("pytorch_optimizer", "pip install pytorch-optimizer", "4.1")
_BITSANDBYTES = Needs("bitsandbytes", "pip install bitsandbytes", "0.50")
_GALORE = Needs("galore_torch", "pip install galore-torch")
_APEX = Needs("apex", "build it from NVIDIA's apex repository with its C++ and CUDA extensions")
_IPEX = Needs("intel_extension_for_pytorch", "pip install intel-extension-for-pytorch (up to torch 2.8)")

_elementwise = partial(Optimizer, scope="element", state=_MOMENTS)
_per_tensor = partial(Optimizer, scope="tensor")
_per_matrix = partial(Optimizer, scope="matrix", rest=True)

_GALORE_ROW = _per_matrix(
    "galoreadamw",
    "AdamW of a low-rank projection of the gradient (arXiv 2403.03507)",
    "galore_torch.GaLoreAdamW",
    floats=0.5,
    needs=(_GALORE, _BITSANDBYTES),
    constants={"no_deprecation_warning": True},
    matrix_options={
        "rank": "galore_rank",
        "update_proj_gap": "galore_interval",
        "scale": "galore_scale",
        "proj_type": "galore_proj",
    },
    fixed=("galore_rank", "galore_proj"),
)
_GALORE_8BIT = replace(
    _GALORE_ROW,
    name="galoreadamw8bit",
    rule="the same with moments in 8 bits",
    library="galore_torch.GaLoreAdamW8bit",
    floats=0.2,
    devices=("nvidia",),
    instead="galoreadamw",
    constants={},
)
_IPEX_LAMB = _per_tensor(
    "ipex.lamb",
    "LAMB of Intel's extension",
    "intel_extension_for_pytorch.optim._lamb.Lamb",
    devices=("intel", "cpu"),
    needs=(_IPEX,),
    instead="lamb",
    constants={"fused": False},
)

OPTIMIZERS = {
    row.name: row
    for row in (
        _elementwise(
            "adamw",
            "Adam, decoupled weight decay (arXiv 1711.05101)",
            "torch.optim.AdamW",
            step="tensor",
            constants={"fused": True},
        ),
        _elementwise(
            "adam",
            "Adam, weight decay added to the gradient (arXiv 1412.6980)",
            "torch.optim.Adam",
            step="tensor",
            constants={"fused": True},
        ),
        _per_tensor(
            "adam8bit",
            "Adam with moments in 8 bits, in blocks of 256 (arXiv 2110.02861)",
            "bitsandbytes.optim.Adam8bit",
            floats=0.6,
            needs=(_BITSANDBYTES,),
        ),
        _elementwise(
            "adamwschedulefree",
            "AdamW that averages iterates instead of a decay (arXiv 2405.15682)",
            "schedulefree.AdamWScheduleFree",
            state={"z": "weight", "exp_avg_sq": "zeros"},
            scalars=_AVERAGE,
            needs=(_SCHEDULE_FREE,),
            constants={"foreach": False},
            averages_by="adam_beta1",
            fixed=("adam_beta1",),
        ),
        _elementwise(
            "sgd",
            "SGD with momentum, weight decay added to the gradient",
            "torch.optim.SGD",
            state={"momentum_buffer": "zeros"},
            floats=1,
            options=_MOMENTUM,
        ),
        _elementwise(
            "sgdschedulefree",
            "SGD that averages iterates instead of a decay (arXiv 2405.15682)",
            "schedulefree.SGDScheduleFree",
            state={"z": "weight"},
            scalars=_AVERAGE,
            floats=1,
            needs=(_SCHEDULE_FREE,),
            options=_MOMENTUM,
            constants={"foreach": False},
            averages_by="sgd_momentum",
            fixed=("sgd_momentum",),
        ),
        _elementwise(
            "sophiag",
            "clipped by a diagonal Hessian from sampled labels (arXiv 2305.14342)",
            "megads.engine.optim.sophia.SophiaG",
            state={"exp_avg": "zeros", "hessian": "zeros"},
            step="tensor",
            options={"betas": ("sophia_beta1", "sophia_beta2"), "rho": "sophia_rho"},
            reads=("sophia_interval",),
        ),
        _elementwise(
            "lion",
            "sign of an interpolated momentum (arXiv 2302.06675)",
            "pytorch_optimizer.Lion",
            state={"exp_avg": "zeros"},
            scalars=("step",),
            floats=1,
            needs=(_PYTORCH_OPTIMIZER,),
            options={"betas": ("lion_beta1", "lion_beta2")},
            constants=_DECOUPLED,
        ),
        _elementwise(
            "adopt",
            "Adam that converges for any beta2 (arXiv 2411.02853)",
            "pytorch_optimizer.ADOPT",
            scalars=("step",),
            needs=(_PYTORCH_OPTIMIZER,),
            constants=_DECOUPLED,
        ),
        _per_tensor(
            "lamb",
            "Adam scaled by every tensor's own norm (arXiv 1904.00962)",
            "pytorch_optimizer.Lamb",
            needs=(_PYTORCH_OPTIMIZER,),
            constants=_DECOUPLED,
        ),
        _per_matrix(
            "muon",
            "momentum made orthogonal, for the matrices of the layers",
            "torch.optim.Muon",
            floats=1.2,
            needs=(Needs("torch", "pip install 'torch>=2.9'", "2.9"),),
            options={"momentum": "muon_momentum", "ns_steps": "muon_ns_steps", "adjust_lr_fn": "muon_adjust_lr"},
        ),
        _per_matrix(
            "shampoo",
            "both sides of a matrix preconditioned (arXiv 1802.09568)",
            "pytorch_optimizer.Shampoo",
            floats=5,
            needs=(_PYTORCH_OPTIMIZER,),
            options={
                "preconditioning_compute_steps": "shampoo_interval",
                "matrix_eps": "shampoo_eps",
                "momentum": "shampoo_momentum",
            },
            constants=_DECOUPLED,
        ),
        _per_matrix(
            "soap",
            "Adam in the eigenbasis of Shampoo's preconditioner (arXiv 2409.11321)",
            "pytorch_optimizer.SOAP",
            floats=6,
            needs=(_PYTORCH_OPTIMIZER,),
            options={**ADAM, "precondition_frequency": "soap_interval", "max_precondition_dim": "soap_max_dim"},
            fixed=("soap_max_dim",),
        ),
        _GALORE_ROW,
        _GALORE_8BIT,
        replace(
            _GALORE_8BIT,
            name="galoreadamw8bitperlayer",
            one_by_one=True,
            rule="the same, one matrix after another, so that only one full gradient is in memory at a time",
        ),
        _elementwise(
            "ds.adamw",
            "AdamW in vectorised C++ on the host; needs OFFLOAD_OPTIMIZER=cpu",
            "deepspeed.ops.adam.DeepSpeedCPUAdam",
            step="int",
            op="cpu_adam",
            on_host=True,
            constants={"adamw_mode": True},
        ),
        _per_tensor(
            "ds.fusedlamb",
            "LAMB in one CUDA kernel",
            "deepspeed.ops.lamb.FusedLamb",
            devices=("nvidia", "amd"),
            op="fused_lamb",
            offload=False,
            instead="lamb",
        ),
        _per_tensor(
            "ds.onebitlamb",
            "LAMB with compressed communication",
            "deepspeed.runtime.fp16.onebit.lamb.OnebitLamb",
            devices=(),
            instead="lamb",
            never="its error feedback differs on every rank and cannot be saved so that another number "
            "of ranks resumes from it, and it replaces ZeRO's gradient reduction",
        ),
        _elementwise(
            "apex.adam",
            "Adam, decoupled weight decay, in one CUDA kernel",
            "apex.optimizers.FusedAdam",
            scalars=("step",),
            devices=("nvidia",),
            needs=(_APEX,),
            offload=False,
            constants={"adam_w_mode": True},
        ),
        _elementwise(
            "apex.sgd",
            "SGD with momentum in one CUDA kernel",
            "apex.optimizers.FusedSGD",
            state={"momentum_buffer": "zeros"},
            floats=1,
            devices=("nvidia",),
            needs=(_APEX,),
            offload=False,
            instead="sgd",
            options=_MOMENTUM,
        ),
        _IPEX_LAMB,
        replace(
            _IPEX_LAMB, name="ipex.fusedlamb", rule="LAMB of Intel's extension in one kernel", constants={"fused": True}
        ),
    )
}
"""Every value of ``OPT``, by name."""
