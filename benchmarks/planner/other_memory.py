"""Measured memory of torchtitan, of Megatron-DeepSpeed on GH200 and of FSDP layouts on H200 as runs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.plan.conventions import (
    KEMPNER_FORGE,
    MEGATRON_DEEPSPEED,
    TORCHTITAN,
    TORCHTITAN_COMPILED,
    TORCHTITAN_LOSS,
    Conventions,
    megatron_core,
)
from megads.plan.memory import GIB, stage_memories, stages
from megads.plan.parts.stacks import saved_bytes

PUBLISHED = Path(__file__).parent / "published"


@dataclass(frozen=True)
class Other:
    """A row with what was predicted, in GiB."""

    name: str
    system: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Return the relative error, signed."""
        return self.predicted / self.measured - 1


def _rows(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _result(name: str, env: dict[str, str], ranks: int, by: Conventions, measured: float) -> Other:
    settings = {"TRAIN_ITERS": "9", "DTYPE": "bf16", **{key: text for key, text in env.items() if text}}
    resolved = resolve("", env=settings, machine="generic")
    run = derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=0).run
    most = max(each.total for each in stage_memories(run, ranks, by))
    return Other(name, by.name, most / GIB, measured)


def torchtitan() -> Iterator[Other]:
    """Yield torchtitan's rows; what its allocator has reserved was measured. Those on H200 compile the loss as well.

    Rows of 405B do not say their micro-batch.
    """
    for row in _rows("torchtitan.csv"):
        if not (row["mem_gib"] and row["mbs"]):
            continue
        env = {
            **{"NLAYERS": row["layers"], "HIDDEN": row["hidden"], "HEADS": row["heads"], "NUM_KV_HEAD": row["kv"]},
            **{"FFN_HIDDEN_SIZE": row["ffn"], "VOCAB_SIZE": row["vocab"], "SEQ": row["seq"], "TP": row["tp"]},
            **{"PP": row["pp"], "SP": row["cp"], "ZERO_STAGE": row["zero"], "MICRO_BATCH": row["mbs"]},
            **{"GLOBAL_BATCH": row["gbs"], "RECOMPUTE": row["recompute"], "TIED_EMBEDDINGS": row["tied"]},
            "SCATTER_NORMS": row["sequence_parallel"],
            "VIRTUAL_STAGES": row["vp"] if int(row["vp"] or 1) > 1 else "",
        }
        compiled = TORCHTITAN_LOSS if "141 GB" in row["note"] else TORCHTITAN_COMPILED
        by = compiled if row["compile"] == "1" else TORCHTITAN
        name = f"{row['model']} on {row['gpus']}, TP {row['tp']} PP {row['pp']} CP {row['cp']}"
        yield _result(name, env, int(row["gpus"]), by, float(row["mem_gib"]))


MODELS = {
    "GPT-NEO": {"NLAYERS": "32", "HIDDEN": "2560", "HEADS": "32"},
    "OPT-350": {"NLAYERS": "24", "HIDDEN": "1024", "HEADS": "16"},
}


def gh200(by: Conventions = MEGATRON_DEEPSPEED) -> Iterator[Other]:
    """Yield Sailor's rows of Megatron-DeepSpeed; those of other sites mix devices of different memories."""
    for row in _rows("megatron_deepspeed_gh200.csv"):
        if row["model"] not in MODELS:
            continue
        layers = [each.split("-") for each in row["layers_per_stage"].split("|")]
        env = MODELS[row["model"]] | {
            **{
                "MODEL_FAMILY": "gpt",
                "SEQ": "2048",
                "VOCAB_SIZE": "50257",
                "VOCAB_MULTIPLE": str(128 * int(row["tp"])),
            },
            **{"TP": row["tp"], "PP": row["pp"], "MICRO_BATCH": row["mbs"], "GLOBAL_BATCH": row["gbs"]},
            "ZERO_STAGE": "0",
        }
        # Of the listed layers the first is the embedding and the last the output.
        counts = [int(last) - int(first) + 1 for first, last in layers]
        counts[0] -= 1
        counts[-1] -= 1
        if len(counts) > 1:
            env["PIPELINE_SPLIT"] = ",".join(map(str, counts))
        name = f"{row['model']} on {row['gpus']}, PP {row['pp']} DP {row['dp']} micro-batch {row['mbs']}"
        yield _result(name, env, int(row["gpus"]), by, float(row["max_mem_GiB"]))


def h200() -> Iterator[Other]:
    """Yield KempnerForge's rows; TP x FSDP, whole layers computed again."""
    for row in _rows("h200_layouts.csv"):
        ranks = int(row["gpus(H200,4/node)"])
        tensor = next((part[2:] for part in row["layout"].split("x") if part.startswith("TP")), "1")
        env = {
            **{"NLAYERS": row["layers"], "HIDDEN": row["hidden"], "HEADS": row["heads"], "NUM_KV_HEAD": row["kv"]},
            **{"FFN_HIDDEN_SIZE": FFN[row["hidden"]], "VOCAB_SIZE": "128256", "SEQ": row["seq"], "TP": tensor},
            **{"ZERO_STAGE": "3", "MICRO_BATCH": row["local_batch"], "RECOMPUTE": "full", "TIED_EMBEDDINGS": "0"},
        }
        yield _result(f"{row['model']} {row['layout']}", env, ranks, KEMPNER_FORGE, float(row["mem_GB"]) * 1e9 / GIB)


FFN = {"4096": "14336", "5120": "17920"}
"""Inner widths, from the number of parameters that the rows state."""


def a100() -> Iterator[Other]:
    """Yield what arXiv 2205.05198 states of the first stage's activations, figure 7 and table 5."""
    for row in _rows("a100_2205_05198.csv"):
        if not row["activations_gib"]:
            continue
        env = {
            **{"MODEL_FAMILY": "gpt", "NLAYERS": row["layers"], "HIDDEN": row["hidden"], "HEADS": row["heads"]},
            **{"VOCAB_SIZE": row["vocab"], "SEQ": row["seq"], "TP": row["tp"], "PP": row["pp"]},
            **{"MICRO_BATCH": row["mbs"], "GLOBAL_BATCH": row["gbs"], "RECOMPUTE": row["recompute"]},
            **{"SCATTER_NORMS": row["sequence_parallel"], "ZERO_STAGE": "0", "TRAIN_ITERS": "9", "DTYPE": "bf16"},
            **({"VIRTUAL_STAGES": row["vp"]} if int(row["vp"] or 1) > 1 else {}),
        }
        ranks = int(row["gpus"])
        run = derive(resolve("", env=env, machine="generic"), num_hosts=1, ranks_per_host=ranks, vocab_size=0).run
        name = f"{row['model']} {row['recompute']}{' SP' * int(row['sequence_parallel'])}"
        kept = saved_bytes(run, next(stages(run)), megatron_core("a100", is_fused=False))
        yield Other(name, "megatron-core", kept / GIB, float(row["activations_gib"]))
