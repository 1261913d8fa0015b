"""Megatron-LM's functional tests as runs: settings, ranks and conventions of a row of ``megatron_memory.csv``.

A row has what a run's command says. What it leaves out comes from ``megatron_settings.csv`` (the same repository's
``model_config.yaml``), else from Megatron-LM's defaults.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.plan.conventions import Conventions, megatron_core

PUBLISHED = Path(__file__).parent / "published"
FAMILY = {"bert": "bert", "t5": "t5"}
VOCABULARY = {"bert": 28996, "t5": 28996 + 100}
"""BertWordPieceCase, with T5's sentinels; the others have GPT-2's."""
BY_TOKENIZER = {"GPTSentencePieceTokenizer": 256_000, "Llama2Tokenizer": 32_000}
GPT2_VOCABULARY = 50_257
RELEASE_RANKS = 128
"""Devices of a ``release`` test, which no file says; the others have one host of eight, or two of four."""

VICUNA = {
    **{"swiglu": "true", "disable-bias-linear": "true", "untie-embeddings-and-output-weights": "true"},
    **{
        "ffn-hidden-size": "11008",
        "vocab-size": "32064",
        "normalization": "RMSNorm",
        "position-embedding-type": "rope",
    },
}
"""The language model of LLaVA 1.5, whose arguments tests of the suite ``mimo`` take from its checkpoint."""

Facts = Mapping[str, str]


def facts_of(row: Facts) -> dict[str, str]:
    """Return a row with the settings of its test that the table leaves out."""
    given = {name: text for name, text in row.items() if text}
    return (VICUNA if row["suite"] == "mimo" else {}) | _more().get((row["suite"], row["test"]), {}) | given


@functools.cache
def _more() -> dict[tuple[str, str], dict[str, str]]:
    with (PUBLISHED / "megatron_settings.csv").open(newline="") as file:
        return {
            (row["suite"], row["test"]): {name: text for name, text in row.items() if text}
            for row in csv.DictReader(file)
        }


def size(facts: Facts, name: str, default: int = 1) -> int:
    """Return a whole number of a row."""
    return int(facts.get(name) or default)


def is_on(facts: Facts, name: str) -> bool:
    """Return whether a row has a switch."""
    return facts.get(name) == "true"


def device_of(facts: Facts) -> str:
    """Return the device of a row's platform, by its name in ``megads.plan.places.accelerators``."""
    return next((name for name in ("gb200", "h100") if name in facts["platform"]), "a100")


def ranks_of(facts: Facts) -> int:
    """Return the devices of a row: one host of eight or two of four, fewer or more where its degrees say so."""
    tensor, stages, context = (
        size(facts, f"{axis}-parallel-size") for axis in ("tensor-model", "pipeline-model", "context")
    )
    experts = size(facts, "expert-model-parallel-size") * size(facts, "expert-tensor-parallel-size", tensor)
    usual = RELEASE_RANKS if "release" in facts["test"] else 8
    if device_of(facts) == "gb200" and "1node" in facts["test"]:
        usual = 4
    one = tensor * stages * context
    ranks = max(usual, one, experts * stages if facts.get("num-experts") else 1)
    most = size(facts, "global-batch-size", ranks) // size(facts, "micro-batch-size")
    return one * max(1, min(ranks // one, most))


def is_fused(facts: Facts) -> bool:
    """Return whether attention was fused.

    Without ``--attention-backend`` Transformer Engine chooses; its older release has no deterministic fused kernel for
    these shapes.
    """
    backend = facts.get("attention-backend", "")
    if backend in ("unfused", "local") or facts["suite"] in FAMILY:
        return False
    return bool(backend) or not (is_old(facts) and is_on(facts, "deterministic-mode"))


def is_old(facts: Facts) -> bool:
    """Return whether a row is of the older release: its platform, or a long-term one with every fifth step written."""
    is_sparse = size(facts, "steps_n") * 4 <= size(facts, "train-iters", 100)
    return "dracooci" in facts["platform"] or ("lts" in facts["platform"] and is_sparse)


def conventions_of(facts: Facts) -> Conventions:
    """Return how the system of a row stores what a run needs."""
    is_local = "local" in (facts.get("transformer-impl"), facts.get("attention-backend"))
    return megatron_core(
        device_of(facts),
        implementation="local" if is_local else "transformer_engine",
        is_fused=is_fused(facts),
        is_deterministic=is_on(facts, "deterministic-mode"),
        has_fused_loss=is_on(facts, "cross-entropy-loss-fusion"),
        has_grouped_experts=is_on(facts, "moe-grouped-gemm"),
        owns_parameters=is_on(facts, "no-use-layer-wise-param-layout"),
        copies=size(facts, "num-distributed-optimizer-instances"),
    )


def settings_of(facts: Facts) -> dict[str, str]:
    """Return the settings of a row, as a user of megads gives them."""
    return {name: text for name, text in _settings(facts) if text}


def _settings(facts: Facts) -> Iterator[tuple[str, str]]:
    tensor = size(facts, "tensor-model-parallel-size")
    yield "MODEL_FAMILY", FAMILY.get(facts["suite"], "gpt")
    for name, columns in SAME.items():
        yield name, next((facts[column] for column in columns if facts.get(column)), "")
    yield "NLAYERS", str(_layers(facts))
    yield "VIRTUAL_STAGES", str(_chunks(facts) if _chunks(facts) > 1 else "")
    yield "VOCAB_SIZE", facts.get("vocab-size") or str(_vocabulary(facts))
    yield "VOCAB_MULTIPLE", str(tensor * size(facts, "make-vocab-size-divisible-by", 128))
    yield "DTYPE", "bf16" if is_on(facts, "bf16") else "fp16" if is_on(facts, "fp16") else "fp32"
    zero = 3 if is_on(facts, "use-megatron-fsdp") else int(is_on(facts, "use-distributed-optimizer"))
    yield "ZERO_STAGE", str(zero)
    yield "SCATTER_NORMS", str(int(tensor > 1 and is_on(facts, "sequence-parallel")))
    yield "TIED_EMBEDDINGS", str(int(not is_on(facts, "untie-embeddings-and-output-weights")))
    yield "ADD_BIAS", str(int(not is_on(facts, "disable-bias-linear")))
    yield "POSITION_EMBEDDING", "rope" if facts.get("position-embedding-type") == "rope" else "learned"
    yield "NORMALIZATION", "rmsnorm" if facts.get("normalization") == "RMSNorm" else ""
    if is_on(facts, "swiglu"):
        yield "ACTIVATION", "swiglu"
        if not facts.get("ffn-hidden-size"):
            yield "FFN_HIDDEN_SIZE", str(int(4 * size(facts, "hidden-size") * 2 / 3) // 64 * 64)
    if is_on(facts, "group-query-attention"):
        yield "NUM_KV_HEAD", facts["num-query-groups"]
    if facts.get("recompute-granularity") == "full":
        yield "RECOMPUTE", "full"
        yield "RECOMPUTE_NUM_LAYERS", facts.get("recompute-num-layers", "")


SAME = {
    "DECODER_LAYERS": ("decoder-num-layers",),
    "DECODER_SEQ": ("decoder-seq-length",),
    "HIDDEN": ("hidden-size",),
    "HEADS": ("num-attention-heads",),
    "HEAD_DIM": ("kv-channels",),
    "FFN_HIDDEN_SIZE": ("ffn-hidden-size",),
    "SEQ": ("seq-length", "encoder-seq-length"),
    "MAX_POSITIONS": ("max-position-embeddings",),
    "MICRO_BATCH": ("micro-batch-size",),
    "GLOBAL_BATCH": ("global-batch-size",),
    "TP": ("tensor-model-parallel-size",),
    "PP": ("pipeline-model-parallel-size",),
    "SP": ("context-parallel-size",),
    "NUM_LAYERS_PER_VIRTUAL_STAGE": ("num-layers-per-virtual-pipeline-stage",),
    "HIDDEN_DROPOUT": ("hidden-dropout",),
    "ATTENTION_DROPOUT": ("attention-dropout",),
}
"""Setting -> columns that mean the same."""


def _vocabulary(facts: Facts) -> int:
    return VOCABULARY.get(facts["suite"]) or BY_TOKENIZER.get(facts.get("tokenizer-type", ""), GPT2_VOCABULARY)


def _layers(facts: Facts) -> int:
    """Return the layers; where embedding and loss take virtual stages of their own, as many as virtual stages."""
    virtual = _chunks(facts) * size(facts, "pipeline-model-parallel-size")
    return max(size(facts, "num-layers", size(facts, "encoder-num-layers")), virtual)


def pieces_of(facts: Facts) -> list[str]:
    """Return the layers of every virtual stage, a character each, where a layout or a pattern says them."""
    layout, pattern = facts.get("pipeline-model-parallel-layout", ""), facts.get("hybrid-layer-pattern", "")
    if layout:
        while (found := LAYOUT.search(layout)) is not None:
            piece, times = (found[1], found[2]) if found[2] else (found[3], found[4])
            layout = layout[: found.start()] + piece * int(times) + layout[found.end() :]
        return ["t" * piece.count("t") for piece in layout.split("|")]
    return pattern.split("/", 1)[0].split("|") if "|" in pattern else []


LAYOUT = re.compile(r"\(([^()]*)\)\*(\d+)|([^()|])\*(\d+)")


def _chunks(facts: Facts) -> int:
    """Return the chunks of a stage, where the row says them by number."""
    pieces = len(pieces_of(facts)) // size(facts, "pipeline-model-parallel-size")
    return pieces or size(facts, "num-virtual-stages-per-pipeline-rank")


@dataclass(frozen=True)
class Test:
    """A row as a run."""

    facts: Facts
    run: RunConfig
    ranks: int
    by: Conventions


def test_of(row: Facts) -> Test:
    """Return the run of a row.

    Raises:
        ConfigError: it is none of megads.
    """
    facts = facts_of(row)
    ranks = ranks_of(facts)
    return Test(facts, _run(tuple(settings_of(facts).items()), ranks), ranks, conventions_of(facts))


@functools.cache
def _run(settings: tuple[tuple[str, str], ...], ranks: int) -> RunConfig:
    resolved = resolve("", env={"TRAIN_ITERS": "9", **dict(settings)}, machine="generic")
    return derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=0).run
