"""What training systems do differently, as rows: their kernels, what they hide, how they cut a sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Passes:
    """Reads and writes of an element, forward and backward together, and kernels of a layer.

    Attributes:
        norm: of an element of a norm.
        residual: of a residual sum.
        gate: of half of what a gated MLP's first product gives.
        plain: of a plain MLP's inner state.
        turned: of queries and keys that rotary positions turn, beyond ``joined``.
        joined: of what the product of queries, keys and values gives.
        logit_bytes: of a logit, from the product to its gradient.
        kernels: of a layer.
    """

    norm: float
    residual: float
    gate: float
    plain: float
    turned: float
    joined: float
    logit_bytes: float
    kernels: int


EAGER = Passes(norm=7, residual=6, gate=18, plain=5, turned=10, joined=2, logit_bytes=40, kernels=45)
"""Operator by operator; the loss in float32."""

COMPILED = Passes(norm=5, residual=3.5, gate=8, plain=5, turned=0, joined=4, logit_bytes=16, kernels=26)
"""Each stretch between products is a kernel: a residual sum is part of the norm behind it, the sum of gradients of
the norm's backward pass, and a gate reads its inputs again in place of keeping results. Logits are read twice and their
gradient is written in their own type."""

FUSED = Passes(norm=5, residual=6, gate=8, plain=5, turned=4, joined=4, logit_bytes=24, kernels=40)
"""Hand-written fused kernels, one of each kind of operator."""


@dataclass(frozen=True)
class Bytes:
    """What an engine reads and writes per parameter, and its host.

    Attributes:
        first_sum: of the step's first micro-batch, for its bf16 gradient to become the float32 sum.
        sum: of every other one.
        clip: to zero float32 gradients, find their norm, and clip them.
        adam: of AdamW.
        cast: from masters to bf16.
        host_s: per step what the host does while the device waits.
    """

    first_sum: int
    sum: int
    clip: int
    adam: int
    cast: int
    host_s: float


BY_ENGINE = {
    "deepspeed": Bytes(first_sum=10, sum=10, clip=16, adam=28, cast=6, host_s=5e-3),
    # Nothing is zeroed, clipping is a factor of the update, and the host waits once, behind the update.
    "native": Bytes(first_sum=6, sum=10, clip=4, adam=28, cast=6, host_s=2e-3),
}
FUSED_SUM = Bytes(first_sum=4, sum=4, clip=8, adam=28, cast=6, host_s=5e-3)
"""The product of weight gradients adds to the sum by itself; it reads and writes it."""
SHARDED_SUM = Bytes(first_sum=16, sum=20, clip=8, adam=28, cast=6, host_s=5e-3)
"""Weights are copied out of what was gathered, twice, and gradients in float32 into what is reduced."""

Attention = Literal["auto", "flash", "fast", "unfused", "eager", "slow"]


@dataclass(frozen=True)
class System:
    """A training system.

    Attributes:
        name: as rows of measurements call it.
        sequence: how the sequence axis works: ``ulysses`` exchanges heads, ``ring`` passes keys and values on.
        passes: of its kernels; None: as the run says (``KERNELS``).
        engine: what it does to gradients and parameters; None: as the run's engine.
        attention: kernel: ``flash`` FlashAttention 2, ``fast`` the fastest there is (cuDNN's on Hopper), ``unfused``
            scores in memory with a fused softmax, ``eager`` operator by operator, ``slow`` a general kernel;
            ``auto``: by the run's kernels.
        tensor_attention: kernel where heads are cut over tensor ranks; ``auto``: the same.
        hides_tensor: whether tensor-parallel messages overlap with the products next to them.
        hides_data: whether gradients and weights hide behind products.
        hides_pipe: whether activations are sent while the stage computes.
        cuts_pipe: whether tensor ranks share what is sent to the next stage.
        computes_again: share of a layer's products that selective recomputation computes again.
        fp8: whether products of layers are in FP8.
        waits: whether the device waits for the host at every kernel.
    """

    name: str
    sequence: Literal["ulysses", "ring"] = "ulysses"
    passes: Passes | None = None
    engine: Bytes | None = None
    attention: Attention = "auto"
    tensor_attention: Attention = "auto"
    hides_tensor: bool = False
    hides_data: bool | None = None
    hides_pipe: bool = False
    cuts_pipe: bool = False
    computes_again: float = 0.0
    fp8: bool = False
    waits: bool = False


MEGADS = System("megads")
CORE = System("megatron-core", "ring", FUSED, FUSED_SUM, "fast", "auto", True, True, True, True)
OLD = System("megatron-2021", "ring", FUSED, FUSED_SUM, "unfused", hides_data=False, cuts_pipe=True)
TITAN = System(
    "torchtitan", "ring", COMPILED, SHARDED_SUM, "flash", hides_data=True, hides_pipe=True, computes_again=0.5
)
FORGE = System("kempnerforge", "ring", COMPILED, SHARDED_SUM, "flash", tensor_attention="slow", hides_data=True)
FOUNDRY = System("llm-foundry", "ring", EAGER, SHARDED_SUM, "flash", hides_data=True)
SYSTEMS = {
    each.name: each
    for each in (
        MEGADS,
        CORE,
        replace(CORE, name="megatron-core-fp8", fp8=True),
        OLD,
        System("megatron-deepspeed", "ulysses", EAGER, BY_ENGINE["deepspeed"], "eager", hides_data=False, waits=True),
        replace(CORE, name="megatron-core-tests", attention="flash", hides_tensor=False, hides_data=False),
        System("zero-2020", "ulysses", EAGER, BY_ENGINE["deepspeed"], "unfused", hides_data=True),
        TITAN,
        replace(TITAN, name="torchtitan-eager", passes=EAGER),
        replace(TITAN, name="torchtitan-async", hides_tensor=True),
        replace(TITAN, name="torchtitan-fp8", fp8=True),
        replace(TITAN, name="torchtitan-fp8-async", fp8=True, hides_tensor=True),
        FORGE,
        FOUNDRY,
        replace(FOUNDRY, name="llm-foundry-fp8", fp8=True),
        replace(FORGE, name="kempnerforge-eager", passes=EAGER),
    )
}
"""By name."""
