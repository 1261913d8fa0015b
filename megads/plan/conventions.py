"""What training systems store, as rows: bytes of a parameter, what layers and the loss keep, what libraries take.

One estimator (``megads.plan.memory``) plans all of them. A row is what a system documents of itself, or what
follows from its kernels; no number was fitted to a measurement, except where it says so. Which tensors a system keeps
was in places decided with the rows of ``benchmarks/planner`` in sight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

MIB = 2**20


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes of one parameter. ZeRO 1 shares the optimizer's among data ranks, 2 also gradients, 3 also weights."""

    weight: float
    gradient: float
    optimizer: float  # state, masters, and gradients of masters


@dataclass(frozen=True)
class Conventions:
    """What a training system keeps in a device's memory.

    Attributes:
        name: of the system, as in ``megads.plan.time.systems``.
        source: where the values are from.
        parameters: bytes of a parameter by ``DTYPE``; empty: those of the engine that runs it.
        score_bytes: kept of an attention score; 0: fused attention keeps none.
        dropped_bytes: kept besides with dropout on them.
        kept_score_bytes: of a score of one layer, in a buffer that is never freed.
        mask_bytes: of an element of a dropout mask; 0: as many as of the element.
        results: copies of the attention's result that are kept besides the one the output projection keeps.
        turned: of queries and keys with rotary positions: kept 2 times, also before them, or once.
        gated: numbers kept for an inner channel of a gated MLP.
        logit_bytes: of a logit, when most is kept of it.
        splits_logits: whether tensor ranks split them.
        keeps_both_texts: whether the input of a layer of an encoder with a decoder is a tensor with both texts.
        exchanges_heads: whether sequence ranks exchange heads, which keeps copies; others pass keys and values on.
        gathered: pieces of a model whose weights ZeRO 3 has whole at a time, the largest ones.
        gathered_bytes: of a parameter in them.
        owns_parameters: whether what ZeRO 1 shares of a parameter has one owner, as with Muon.
        products: share of the results of matrix products that ``RECOMPUTE=selective`` keeps, with the attention's and
            the layer's input; 0: it keeps all but what is inside the attention core.
        passed: tensors between stages that a rank of a pipeline keeps: what it got, its gradient, what it gave.
        copies: groups of data ranks that each hold all of what ZeRO shares.
        library_bytes: of libraries' workspaces; None: what a process of megads takes.
    """

    name: str
    source: str
    parameters: Mapping[str, ParameterBytes] = field(default_factory=dict, hash=False)
    score_bytes: int = 0
    dropped_bytes: int = 0
    kept_score_bytes: int = 0
    mask_bytes: int = 0
    results: int = 0
    turned: int = 2
    gated: int = 4
    logit_bytes: int = 12
    splits_logits: bool = True
    keeps_both_texts: bool = True
    exchanges_heads: bool = True
    gathered: int = 2
    gathered_bytes: int = 2
    owns_parameters: bool = False
    products: float = 0
    passed: int = 0
    copies: int = 1
    library_bytes: int | None = None


MEGADS = Conventions("megads", "megads.engine; compared with its runs in tests")

MIXED = MappingProxyType(
    {
        "bf16": ParameterBytes(2, 4, 12),
        # Gradients are summed in fp16; those of masters are made for the update and kept.
        "fp16": ParameterBytes(2, 2, 16),
        "fp32": ParameterBytes(4, 4, 8),
    }
)
"""Megatron-LM: bf16 gradients are summed in float32 (``--accumulate-allreduce-grads-in-fp32``, implied by bf16)."""

SCORES, DROPPED = 2, 3
"""Bytes of a score without fused attention: softmax 2; mask 1 and result 2 of dropout (arXiv 2205.05198)."""

MEGATRON_CORE = Conventions(
    "megatron-core",
    "NVIDIA/Megatron-LM d98e8a64; activations as in arXiv 2205.05198, section 4",
    parameters=MIXED,
    mask_bytes=1,
    turned=1,
    gated=3,
    logit_bytes=6,  # half precision, and float32 for the loss, whose gradient takes their place
    keeps_both_texts=False,
    passed=3,
    exchanges_heads=False,
    library_bytes=0,
)

CUBLAS_MIB = {"a100": 8.125, "h100": 32.0, "gb200": 32.0}
"""Of a handle, by torch (at::cuda::getChosenWorkspaceSize): ``:4096:8`` from Hopper on, ``:4096:2:16:8`` before."""

DETERMINISTIC_MIB = 32.0
"""Of a handle with ``CUBLAS_WORKSPACE_CONFIG=:4096:8``, which deterministic runs need."""

HANDLES = 2
"""Threads with a handle of their own: the one that computes forwards, and autograd's."""

TRANSFORMER_ENGINE_MIB = {"a100": 4.0, "h100": 32.0, "gb200": 32.0}
"""Its workspace (get_cublas_workspace_size_bytes)."""

GROUPED_STREAMS = 4
"""On which it multiplies groups of experts."""


def megatron_core(
    device: str,
    *,
    implementation: str = "transformer_engine",
    is_fused: bool = True,
    is_deterministic: bool = False,
    has_fused_loss: bool = False,
    has_grouped_experts: bool = False,
    owns_parameters: bool = False,
    copies: int = 1,
) -> Conventions:
    """Return the row of Megatron-core on ``device``.

    Args:
        implementation: ``transformer_engine``, or ``local`` layers of torch.
        is_fused: whether attention is fused.
        is_deterministic: whether the run is, which decides what cuBLAS takes.
        has_fused_loss: ``--cross-entropy-loss-fusion``, whose compiled steps write a second float32 copy.
        has_grouped_experts: ``--moe-grouped-gemm``, each of whose streams has a workspace.
        owns_parameters: ``--optimizer muon`` with a distributed optimizer and no layout of parameters.
        copies: ``--num-distributed-optimizer-instances``.
    """
    is_local = implementation == "local"
    keeps_no_scores = is_fused and not is_local
    handle = DETERMINISTIC_MIB if is_deterministic else CUBLAS_MIB.get(device, 32.0)
    workspaces = 0 if is_local else 1 + GROUPED_STREAMS * has_grouped_experts
    library = HANDLES * handle + workspaces * TRANSFORMER_ENGINE_MIB.get(device, 32.0)
    return replace(
        MEGATRON_CORE,
        score_bytes=0 if keeps_no_scores else SCORES,
        dropped_bytes=0 if keeps_no_scores else DROPPED,
        kept_score_bytes=2 if is_local else 0,  # of the scores' product, a global buffer
        # Kernels of Hopper leave the result where the output projection reads it.
        results=1 if keeps_no_scores and device != "h100" else 0,
        library_bytes=round(library * MIB),
        logit_bytes=10 if has_fused_loss else MEGATRON_CORE.logit_bytes,
        copies=copies,
        owns_parameters=owns_parameters,
    )


TORCHTITAN = Conventions(
    "torchtitan",
    "pytorch/torchtitan: FSDP2 of float32 parameters, reduced in float32; layers and loss operator by operator",
    parameters={"bf16": ParameterBytes(4, 4, 8)},
    logit_bytes=18,  # bf16, and in float32 the logits, log-softmax, and the gradients of both
    exchanges_heads=False,
    products=0.5,
    gathered=4,
    library_bytes=round((HANDLES * 32 + 512) * MIB),
)

TORCHTITAN_COMPILED = replace(TORCHTITAN, turned=1, gated=3, logit_bytes=14)
"""Its layers compiled, the loss operator by operator."""

TORCHTITAN_LOSS = replace(TORCHTITAN_COMPILED, logit_bytes=6)
"""Also its loss compiled: no intermediate copies of the logits."""

KEMPNER_FORGE = Conventions(
    "fsdp",
    "KempnerForge: all states in bf16, whole layers computed again, logits gathered from the tensor ranks",
    parameters={"bf16": ParameterBytes(2, 2, 4)},
    logit_bytes=10,
    splits_logits=False,
    exchanges_heads=False,
    gathered=4,
    library_bytes=round(HANDLES * 32 * MIB),
)

DEEPSPEED_PROCESS_GIB = 4.9
"""What rows of Megatron-DeepSpeed on GH200 have besides tensors: a constant, the median of 14 rows."""

MEGATRON_DEEPSPEED = replace(
    MEGATRON_CORE,
    name="megatron-deepspeed",
    source="Megatron-DeepSpeed as Sailor ran it (eth-easl/sailor): unfused attention, DeepSpeed without ZeRO",
    score_bytes=SCORES,
    dropped_bytes=DROPPED,
    library_bytes=round(DEEPSPEED_PROCESS_GIB * 1024 * MIB),
)

CONVENTIONS = {each.name: each for each in (MEGADS, MEGATRON_CORE, TORCHTITAN, KEMPNER_FORGE, MEGATRON_DEEPSPEED)}
"""By name."""
