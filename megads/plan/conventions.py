"""What training systems store, as rows: bytes of a parameter, what layers and the loss keep, what libraries take.

One estimator (``megads.plan.memory``) plans all of them. A row is what a system documents of itself, or what
follows from its kernels; no value of a row was fitted to a measurement, except where it says so.
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
        kept_score_bytes: of a score of one layer, in a buffer that is never freed.
        mask_bytes: of an element of a dropout mask; 0: as many as of the element.
        results: copies of the attention's result that are kept besides the one the output projection keeps.
        turned: of queries and keys with rotary positions: kept 2 times, also before them, or once.
        gated: numbers kept for an inner channel of a gated MLP.
        logit_bytes: of a logit, when most is kept of it.
        keeps_both_texts: whether the input of a layer of an encoder with a decoder is a tensor with both texts.
        exchanges_heads: whether sequence ranks exchange heads, which keeps copies; others pass keys and values on.
        gathered: pieces of a model whose weights ZeRO 3 has whole at a time, the largest ones.
        gathered_bytes: of a parameter in them.
        library_bytes: of libraries' workspaces; None: what a process of megads takes.
    """

    name: str
    source: str
    parameters: Mapping[str, ParameterBytes] = field(default_factory=dict, hash=False)
    score_bytes: int = 0
    kept_score_bytes: int = 0
    mask_bytes: int = 0
    results: int = 0
    turned: int = 2
    gated: int = 4
    logit_bytes: int = 12
    keeps_both_texts: bool = True
    exchanges_heads: bool = True
    gathered: int = 2
    gathered_bytes: int = 2
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

SCORES = 5
"""Bytes of a score without fused attention: softmax 2, dropout mask 1, result of dropout 2 (arXiv 2205.05198)."""

MEGATRON_CORE = Conventions(
    "megatron-core",
    "NVIDIA/Megatron-LM d98e8a64; activations as in arXiv 2205.05198, section 4",
    parameters=MIXED,
    mask_bytes=1,
    turned=1,
    gated=3,
    logit_bytes=6,  # half precision, and float32 for the loss, whose gradient takes their place
    keeps_both_texts=False,
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


def megatron_core(
    device: str, *, implementation: str = "transformer_engine", is_fused: bool = True, is_deterministic: bool = False
) -> Conventions:
    """Return the row of Megatron-core on ``device``.

    Args:
        implementation: ``transformer_engine``, or ``local`` layers of torch.
        is_fused: whether attention is fused.
        is_deterministic: whether the run is, which decides what cuBLAS takes.
    """
    is_local = implementation == "local"
    handle = DETERMINISTIC_MIB if is_deterministic else CUBLAS_MIB.get(device, 32.0)
    library = HANDLES * handle + (0 if is_local else TRANSFORMER_ENGINE_MIB.get(device, 32.0))
    return replace(
        MEGATRON_CORE,
        score_bytes=0 if is_fused and not is_local else SCORES,
        kept_score_bytes=2 if is_local else 0,  # of the scores' product, a global buffer
        # Kernels of Hopper leave the result where the output projection reads it.
        results=1 if is_fused and not is_local and device != "h100" else 0,
        library_bytes=round(library * MIB),
    )


CONVENTIONS = {each.name: each for each in (MEGADS, MEGATRON_CORE)}
"""By name."""
