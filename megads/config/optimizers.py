"""The optimizers: what each one is, whose code it is, and where it can run. A table, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Scope = Literal["element", "tensor", "matrix"]

ACCELERATORS = ("nvidia", "amd", "intel")
EVERYWHERE = (*ACCELERATORS, "cpu")


@dataclass(frozen=True)
class Needs:
    """A package that is no part of a plain installation.

    Attributes:
        module: what is imported.
        install: how to get it.
        version: the oldest version that has what is used; empty: any.
    """

    module: str
    install: str
    version: str = ""


@dataclass(frozen=True)
class Optimizer:
    """One row of the table.

    Attributes:
        name: value of ``OPT``.
        rule: what it does to a weight, in a few words.
        library: the class that does it.
        scope: what its rule looks at: each number by itself (``element``), the norm of a whole tensor
            or a block of it (``tensor``), or a whole matrix. The last two are stepped by one rank that
            gathers the whole parameter, see ``megads.engine.optim.whole_parameters``.
        state: of ``element``: kinds of state as large as the weights -> what they begin with.
        scalars: of ``element``: numbers of a parameter group that belong to the state.
        numbers: of state for each weight, in float32 numbers; for the memory estimate.
        rest: whether embeddings, output layer, biases and norms are left to AdamW.
        devices: where it can run.
        needs: packages besides torch and DeepSpeed.
        op: of DeepSpeed, that has to be built when DeepSpeed is installed.
        offload: whether it can step weights that OFFLOAD_OPTIMIZER keeps on the host.
        on_host: whether it can step no others.
        instead: value of ``OPT`` that comes closest and runs everywhere.
        never: why it cannot run anywhere here; empty: it can.
        settings: that only it (and its like) read.
        fixed: fields of ``optim`` that its state was made with, and that cannot change on resume.
    """

    name: str
    rule: str
    library: str
    scope: Scope
    state: dict[str, Literal["zeros", "weight"]] = field(default_factory=dict)
    scalars: tuple[str, ...] = ()
    numbers: float = 2.0
    rest: bool = False
    devices: tuple[str, ...] = EVERYWHERE
    needs: tuple[Needs, ...] = ()
    op: str = ""
    offload: bool = True
    on_host: bool = False
    instead: str = "adamw"
    never: str = ""
    settings: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether one rank gathers and steps a parameter as a whole."""
        return self.scope != "element"

    @property
    def is_averaged(self) -> bool:
        """Whether training and use want different weights, as schedule-free optimizers do."""
        return self.state.get("z") == "weight"

    @property
    def zero_stages(self) -> tuple[int, ...]:
        """The ZeRO stages it runs under; offload is of partitions, which ZeRO 0 has none of."""
        return (1, 2, 3) if self.on_host else (0, 1, 2, 3)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The DTYPEs it runs with: all, since it steps float32 weights whatever the model computes in."""
        return ("fp32", "bf16", "fp16")


ADAM = ("ADAM_BETA1", "ADAM_BETA2", "ADAM_EPS")
_MOMENTS: dict[str, Literal["zeros", "weight"]] = {"exp_avg": "zeros", "exp_avg_sq": "zeros"}
_AVERAGE = ("k", "weight_sum", "lr_max", "scheduled_lr")
_SCHEDULE_FREE = Needs("schedulefree", "pip install schedulefree", "1.4")
_PYTORCH_OPTIMIZER = Needs("pytorch_optimizer", "pip install pytorch-optimizer", "4.1")
_BITSANDBYTES = Needs("bitsandbytes", "pip install bitsandbytes", "0.50")
_GALORE = Needs("galore_torch", "pip install galore-torch")
_APEX = Needs("apex", "build it from NVIDIA's apex repository with its C++ and CUDA extensions")
_IPEX = Needs("intel_extension_for_pytorch", "pip install intel-extension-for-pytorch (up to torch 2.8)")
_GALORE_SETTINGS = (*ADAM, "GALORE_RANK", "GALORE_INTERVAL", "GALORE_SCALE", "GALORE_PROJ")

OPTIMIZERS = {
    row.name: row
    for row in (
        Optimizer(
            "adamw",
            "Adam, decoupled weight decay (arXiv 1711.05101)",
            "torch.optim.AdamW",
            "element",
            _MOMENTS,
            settings=ADAM,
        ),
        Optimizer(
            "adam",
            "Adam, weight decay added to the gradient (arXiv 1412.6980)",
            "torch.optim.Adam",
            "element",
            _MOMENTS,
            settings=ADAM,
        ),
        Optimizer(
            "adam8bit",
            "Adam with moments in 8 bits, in blocks of 256 (arXiv 2110.02861)",
            "bitsandbytes.optim.Adam8bit",
            "tensor",
            numbers=0.6,
            needs=(_BITSANDBYTES,),
            settings=ADAM,
        ),
        Optimizer(
            "adamwschedulefree",
            "AdamW that averages iterates instead of a decay (arXiv 2405.15682)",
            "schedulefree.AdamWScheduleFree",
            "element",
            {"z": "weight", "exp_avg_sq": "zeros"},
            _AVERAGE,
            needs=(_SCHEDULE_FREE,),
            settings=ADAM,
            fixed=("adam_beta1",),
        ),
        Optimizer(
            "sgd",
            "SGD with momentum, weight decay added to the gradient",
            "torch.optim.SGD",
            "element",
            {"momentum_buffer": "zeros"},
            numbers=1,
            settings=("SGD_MOMENTUM",),
        ),
        Optimizer(
            "sgdschedulefree",
            "SGD that averages iterates instead of a decay (arXiv 2405.15682)",
            "schedulefree.SGDScheduleFree",
            "element",
            {"z": "weight"},
            _AVERAGE,
            numbers=1,
            needs=(_SCHEDULE_FREE,),
            settings=("SGD_MOMENTUM",),
            fixed=("sgd_momentum",),
        ),
        Optimizer(
            "sophiag",
            "clipped by a diagonal Hessian from sampled labels (arXiv 2305.14342)",
            "megads.engine.optim.sophia.SophiaG",
            "element",
            {"exp_avg": "zeros", "hessian": "zeros"},
            settings=("SOPHIA_BETA1", "SOPHIA_BETA2", "SOPHIA_RHO", "SOPHIA_INTERVAL"),
        ),
        Optimizer(
            "lion",
            "sign of an interpolated momentum (arXiv 2302.06675)",
            "pytorch_optimizer.Lion",
            "element",
            {"exp_avg": "zeros"},
            ("step",),
            numbers=1,
            needs=(_PYTORCH_OPTIMIZER,),
            settings=("LION_BETA1", "LION_BETA2"),
        ),
        Optimizer(
            "adopt",
            "Adam that converges for any beta2 (arXiv 2411.02853)",
            "pytorch_optimizer.ADOPT",
            "element",
            _MOMENTS,
            ("step",),
            needs=(_PYTORCH_OPTIMIZER,),
            settings=ADAM,
        ),
        Optimizer(
            "lamb",
            "Adam scaled by every tensor's own norm (arXiv 1904.00962)",
            "pytorch_optimizer.Lamb",
            "tensor",
            needs=(_PYTORCH_OPTIMIZER,),
            settings=ADAM,
        ),
        Optimizer(
            "muon",
            "momentum made orthogonal, for the matrices of the layers",
            "torch.optim.Muon",
            "matrix",
            numbers=1.2,
            rest=True,
            needs=(Needs("torch", "pip install 'torch>=2.9'", "2.9"),),
            settings=(*ADAM, "MUON_MOMENTUM", "MUON_NS_STEPS", "MUON_ADJUST_LR"),
        ),
        Optimizer(
            "shampoo",
            "both sides of a matrix preconditioned (arXiv 1802.09568)",
            "pytorch_optimizer.Shampoo",
            "matrix",
            numbers=5,
            rest=True,
            needs=(_PYTORCH_OPTIMIZER,),
            settings=(*ADAM, "SHAMPOO_INTERVAL", "SHAMPOO_EPS", "SHAMPOO_MOMENTUM"),
        ),
        Optimizer(
            "soap",
            "Adam in the eigenbasis of Shampoo's preconditioner (arXiv 2409.11321)",
            "pytorch_optimizer.SOAP",
            "matrix",
            numbers=6,
            rest=True,
            needs=(_PYTORCH_OPTIMIZER,),
            settings=(*ADAM, "SOAP_INTERVAL", "SOAP_MAX_DIM"),
            fixed=("soap_max_dim",),
        ),
        Optimizer(
            "galoreadamw",
            "AdamW of a low-rank projection of the gradient (arXiv 2403.03507)",
            "galore_torch.GaLoreAdamW",
            "matrix",
            numbers=0.5,
            rest=True,
            needs=(_GALORE, _BITSANDBYTES),
            settings=_GALORE_SETTINGS,
            fixed=("galore_rank", "galore_proj"),
        ),
        Optimizer(
            "galoreadamw8bit",
            "the same with moments in 8 bits",
            "galore_torch.GaLoreAdamW8bit",
            "matrix",
            numbers=0.2,
            rest=True,
            devices=("nvidia",),
            needs=(_GALORE, _BITSANDBYTES),
            instead="galoreadamw",
            settings=_GALORE_SETTINGS,
            fixed=("galore_rank", "galore_proj"),
        ),
        Optimizer(
            "galoreadamw8bitperlayer",
            "the same, one matrix after another, so that only one full gradient is in memory at a time",
            "galore_torch.GaLoreAdamW8bit",
            "matrix",
            numbers=0.2,
            rest=True,
            devices=("nvidia",),
            needs=(_GALORE, _BITSANDBYTES),
            instead="galoreadamw",
            settings=_GALORE_SETTINGS,
            fixed=("galore_rank", "galore_proj"),
        ),
        Optimizer(
            "ds.adamw",
            "AdamW in vectorised C++ on the host; needs OFFLOAD_OPTIMIZER=cpu",
            "deepspeed.ops.adam.DeepSpeedCPUAdam",
            "element",
            _MOMENTS,
            op="cpu_adam",
            on_host=True,
            settings=ADAM,
        ),
        Optimizer(
            "ds.fusedlamb",
            "LAMB in one CUDA kernel",
            "deepspeed.ops.lamb.FusedLamb",
            "tensor",
            devices=("nvidia", "amd"),
            op="fused_lamb",
            offload=False,
            instead="lamb",
            settings=ADAM,
        ),
        Optimizer(
            "ds.onebitlamb",
            "LAMB with compressed communication",
            "deepspeed.runtime.fp16.onebit.lamb.OnebitLamb",
            "tensor",
            devices=(),
            instead="lamb",
            never="its error feedback differs on every rank and cannot be saved so that another number "
            "of ranks resumes from it, and it replaces ZeRO's gradient reduction",
            settings=ADAM,
        ),
        Optimizer(
            "apex.adam",
            "Adam, decoupled weight decay, in one CUDA kernel",
            "apex.optimizers.FusedAdam",
            "element",
            _MOMENTS,
            ("step",),
            devices=("nvidia",),
            needs=(_APEX,),
            offload=False,
            settings=ADAM,
        ),
        Optimizer(
            "apex.sgd",
            "SGD with momentum in one CUDA kernel",
            "apex.optimizers.FusedSGD",
            "element",
            {"momentum_buffer": "zeros"},
            numbers=1,
            devices=("nvidia",),
            needs=(_APEX,),
            offload=False,
            instead="sgd",
            settings=("SGD_MOMENTUM",),
        ),
        Optimizer(
            "ipex.lamb",
            "LAMB of Intel's extension",
            "intel_extension_for_pytorch.optim._lamb.Lamb",
            "tensor",
            devices=("intel",),
            needs=(_IPEX,),
            instead="lamb",
            settings=ADAM,
        ),
        Optimizer(
            "ipex.fusedlamb",
            "LAMB of Intel's extension in one kernel",
            "intel_extension_for_pytorch.optim._lamb.Lamb",
            "tensor",
            devices=("intel",),
            needs=(_IPEX,),
            instead="lamb",
            settings=ADAM,
        ),
    )
}
"""Every value of ``OPT``, by name."""
