"""Rows that no constant was fitted to: BLOOM's search for a layout, Megatron-DeepSpeed on 320 and 384 A100.

They say how far off a plan is on a cluster and for models that the fit has not seen, and whether its first three
layouts hold the one that was measured to be the fastest.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from benchmarks.planner.rows import Row
from benchmarks.planner.time import cells
from megads.config.derive import derive
from megads.config.sources.resolve import resolve
from megads.plan.places.place import place_of
from megads.plan.time.step import step_time
from megads.plan.time.systems import SYSTEMS

PLANNER = Path(__file__).parent
PLACE = "jean-zay-a100"


def rows() -> list[Row]:
    """Return the step times; layouts that ran out of memory or have unequal stages are left out."""
    return [_row(row) for row in cells("bigscience_a100.csv") if row["step_s"] and row["uneven"] != "1"]


def _row(row: dict[str, str]) -> Row:
    names = {"NLAYERS": "layers", "HIDDEN": "hidden", "HEADS": "heads", "SEQ": "seq", "TP": "tp", "PP": "pp"}
    names |= {
        "MICRO_BATCH": "mbs",
        "GLOBAL_BATCH": "gbs",
        "VOCAB_SIZE": "vocab",
        "DTYPE": "dtype",
        "ZERO_STAGE": "zero",
    }
    settings = {"MODEL_FAMILY": "gpt", "RECOMPUTE": row["recompute"], **{name: row[key] for name, key in names.items()}}
    settings["HIDDEN_DROPOUT"] = "0.1" if row["dtype"] == "fp16" else "0"
    if "embeddings are stages" in row["note"]:
        settings["PIPELINE_SPLIT"] = "ends"
    return Row(row["source"], "megatron-deepspeed", PLACE, settings, int(row["gpus"]), float(row["step_s"]), "s",
               row["model"], "BLOOM", row["sweep"])  # fmt: skip


def predicted_s(row: Row) -> float:
    """Return the predicted seconds of a step."""
    place = place_of(row.place, root=PLANNER)
    resolved = resolve(None, env={"ENGINE": "native", **row.settings}, machine="generic")
    hosts = row.ranks // place.per_host
    vocabulary = int(row.settings["VOCAB_SIZE"])
    run = derive(resolved, num_hosts=hosts, ranks_per_host=place.per_host, vocab_size=vocabulary).run
    return step_time(run, row.ranks, place, system=SYSTEMS[row.system]).step_s


def sweeps(pairs: list[tuple[Row, float]]) -> dict[str, list[tuple[float, float]]]:
    """Return the measured and predicted seconds of every sweep of three layouts or more, by its name."""
    found: dict[str, dict[tuple[str, ...], tuple[float, float]]] = defaultdict(dict)
    for row, seconds in pairs:
        layout = tuple(row.settings[name] for name in ("TP", "PP", "MICRO_BATCH"))
        if row.sweep and (layout not in found[row.sweep] or row.measured < found[row.sweep][layout][0]):
            found[row.sweep][layout] = (row.measured, seconds)
    return {name: list(layouts.values()) for name, layouts in found.items() if len(layouts) > 2}
