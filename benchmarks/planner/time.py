"""Rows of measured step times: each as the settings that a user would give, through resolve and derive."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from benchmarks.planner.rows import Row
from megads.config.derive import derive
from megads.config.schema import RunConfig
from megads.config.sources.resolve import resolve
from megads.plan.places.accelerators import ACCELERATORS
from megads.plan.places.place import Place, place_of

PUBLISHED = Path(__file__).with_name("published")
Cells = dict[str, str]
LLAMA = {
    "8B": {"NLAYERS": "32", "HIDDEN": "4096", "HEADS": "32", "NUM_KV_HEAD": "8", "FFN_HIDDEN_SIZE": "14336"},
    "70B": {"NLAYERS": "80", "HIDDEN": "8192", "HEADS": "64", "NUM_KV_HEAD": "8", "FFN_HIDDEN_SIZE": "28672"},
    "405B": {"NLAYERS": "126", "HIDDEN": "16384", "HEADS": "128", "NUM_KV_HEAD": "8", "FFN_HIDDEN_SIZE": "53248"},
}
LLAMA_3 = {"MODEL_FAMILY": "llama", "VOCAB_SIZE": "128256"}


@cache
def cells(name: str) -> tuple[Cells, ...]:
    """Return the rows of a file in ``published``."""
    with (PUBLISHED / name).open(newline="") as file:
        return tuple(csv.DictReader(file))


def rows() -> list[Row]:
    """Return all measured step times."""
    return [
        *_a100(),
        *_h100(),
        *_gh200(),
        *_h200(),
        *_common("torchtitan.csv", "torchtitan"),
        *_common("deepspeed_v100.csv", "V100"),
        *_tests(),
    ]


def later_rows() -> list[Row]:
    """Return rows of sources that no constant is fitted to."""
    found = []
    for suite, name in (("Megatron-Bridge", "megatron_bridge"), ("NeMo", "nemo"), ("LLM Foundry", "llm_foundry")):
        found += _common(f"{name}.csv", suite, skip=("LoRA", "fine"))
    return found


SAME = {
    "GPT3-175B": "175B",
    "174.6B": "175B",
    "529.6B": "530B",
    "1008B": "1T",
    "7B": "Llama-8B",
    "8B": "Llama-8B",
    "70B": "Llama-70B",
    "405B": "Llama-405B",
    "13B": "Llama-13B",
}
"""Models by what a source calls them (the 7B of H200 rows has 8.03 billion parameters); each is one group."""


def _named(suite: str, model: str) -> tuple[str, str]:
    """Return the group and the suite of a row."""
    model = model.removeprefix("Llama3.1-").removeprefix("Llama3-")
    return SAME.get(model, model), suite


def run_of(row: Row) -> RunConfig:
    """Return the run of a row, derived."""
    place = place_for(row.place)
    hosts = -(-row.ranks // place.per_host)
    settings = {"ENGINE": "native", **row.settings}
    vocabulary = int(settings["VOCAB_SIZE"])
    resolved = resolve(None, env=settings, machine="generic")
    return derive(resolved, num_hosts=hosts, ranks_per_host=row.ranks // hosts, vocab_size=vocabulary).run


@cache
def place_for(name: str) -> Place:
    """Return the place of a row."""
    if name == "h200-4":
        place = place_of("h200")
        return replace(place, per_host=4, levels=(replace(place.levels[0], ranks=4), *place.levels[1:]))
    if name == "h100-500w":
        place = place_of("h100")
        return replace(place, device=replace(place.device, memory_gb_s=2400, power=500 / 700))
    if name == "gh200" and name not in ACCELERATORS:
        place = place_of("h200")
        near, far = place.levels
        levels = (replace(near, ranks=4), replace(far, gb_s=25))
        return replace(place, per_host=4, device=replace(place.device, memory_gb_s=4000), levels=levels)
    if name == "v100-dgx2" and name not in ACCELERATORS:
        place = place_of("a100-dgx")
        device = replace(place.device, device_name="Tesla V100-SXM3-32GB", memory_gb_s=900)
        near, far = place.levels
        levels = (replace(near, ranks=16, gb_s=150), replace(far, gb_s=6.25))
        return replace(place, per_host=16, device=device, levels=levels)
    return place_of(name)


def _sizes(row: Cells) -> Cells:
    names = {"NLAYERS": "layers", "HIDDEN": "hidden", "HEADS": "heads", "SEQ": "seq", "TP": "tp"}
    more = {"PP": "pp", "MICRO_BATCH": "mbs", "GLOBAL_BATCH": "gbs", "NUM_KV_HEAD": "kv", "FFN_HIDDEN_SIZE": "ffn"}
    return {name: row[key] for name, key in {**names, **more}.items() if row.get(key)}


def _a100() -> Iterator[Row]:
    for name in ("a100_2104_04473.csv", "a100_2205_05198.csv"):
        for row in cells(name):
            if not row["step_s"]:
                continue
            settings = {"MODEL_FAMILY": "gpt", **_sizes(row), "VOCAB_SIZE": row["vocab"], "DTYPE": "fp16"}
            settings |= {"VIRTUAL_STAGES": row["vp"], "RECOMPUTE": row["recompute"], "ZERO_STAGE": "0"}
            settings |= {"SCATTER_NORMS": row["sequence_parallel"], "HIDDEN_DROPOUT": "0.1"}
            yield Row(row["source"], "megatron-2021", "a100-dgx", settings, int(row["gpus"]), float(row["step_s"]),
                      "s", *_named("A100", row["model"]), row.get("sweep", ""))  # fmt: skip


def _h100() -> Iterator[Row]:
    for row in cells("h100_step_times.csv"):
        model = row["model"].removeprefix("Llama3.1-")
        if model in LLAMA:
            sizes = {**LLAMA_3, **LLAMA[model]}
        else:
            sizes = {"MODEL_FAMILY": "gpt", "NLAYERS": "96", "HIDDEN": "12288", "HEADS": "96", "VOCAB_SIZE": "51200"}
        settings = {**sizes, "SEQ": row["seq"], "TP": row["TP"], "PP": row["PP"], "SP": row["CP"]}
        settings |= {"VIRTUAL_STAGES": row["VP"], "MICRO_BATCH": row["MBS"], "GLOBAL_BATCH": row["GBS"]}
        settings |= {"ZERO_STAGE": "1", "SCATTER_NORMS": str(int(row["TP"] != "1")), "RECOMPUTE": "none"}
        system = "megatron-core" + "-fp8" * (row["prec"] == "fp8")
        yield Row(row["source"], system, "h100", settings, int(row["gpus"]), float(row["step_s"]), "s",
                  *_named("H100", model))  # fmt: skip


GH200 = {
    "GPT-NEO": {"NLAYERS": "32", "HIDDEN": "2560", "HEADS": "32"},
    "OPT-350": {"NLAYERS": "24", "HIDDEN": "1024", "HEADS": "16"},
}
MISCOPIED = "OPT-350/N4/plan_config_N4_D4.json"
"""Its gradient reduction takes as long as that of another row, to every digit, and nearly all of its step."""


def _gh200() -> Iterator[Row]:
    for row in cells("megatron_deepspeed_gh200.csv"):
        if row["site"] != "clariden" or row["path"].endswith(MISCOPIED):
            continue
        settings = {"MODEL_FAMILY": "gpt", **GH200[row["model"]], "SEQ": "2048", "VOCAB_SIZE": "50257"}
        settings |= {"TP": row["tp"], "PP": row["pp"], "MICRO_BATCH": row["mbs"], "GLOBAL_BATCH": row["gbs"]}
        settings |= {"ZERO_STAGE": "0", "DTYPE": "fp16", "PIPELINE_SPLIT": _split(row["layers_per_stage"])}
        yield Row(row["path"], "megatron-deepspeed", "gh200", settings, int(row["gpus"]), float(row["step_s"]), "s",
                  *_named("GH200", row["model"]))  # fmt: skip


def _split(text: str) -> str:
    ends = [tuple(map(int, each.split("-"))) for each in text.split("|")]
    if len(ends) == 1:
        return "layers"
    counts = [last - first + 1 for first, last in ends]
    counts[0] -= 1
    counts[-1] -= 1
    return ",".join(map(str, counts))


def _h200() -> Iterator[Row]:
    for row in cells("kempnerforge_h200.csv"):
        settings = {**LLAMA_3, **_sizes(row), "GRAD_ACC_STEPS": row["steps"], "RECOMPUTE": "full"}
        settings |= {"ZERO_STAGE": "3" if int(row["dp"]) > 1 else "0", "SCATTER_NORMS": str(int(row["tp"] != "1"))}
        settings |= {"COMMUNICATION_DATA_TYPE": "fp32"}
        system = "kempnerforge" + "-eager" * (row["kernels"] == "eager")
        yield Row(row["source"], system, "h200-4", settings, int(row["gpus"]), float(row["step_s"]), "s",
                  *_named("H200", row["model"]), f"KempnerForge {row['model']} on {row['gpus']}")  # fmt: skip


GPUS = {
    "H100-96GB HBM2e 2.4 TB/s 500 W": "h100-500w",
    "H100-80GB SXM": "h100",
    "H100": "h100",
    "H200-141GB SXM": "h200",
    "V100-32GB SXM3": "v100-dgx2",
    "A100-80GB SXM": "a100-dgx",
    "A100-40GB SXM": "a100-40",
}


def _common(name: str, suite: str, skip: tuple[str, ...] = ()) -> Iterator[Row]:
    """Yield the rows of a file in the schema of published/README.md, of the devices of :data:`GPUS`."""
    for row in cells(name):
        if row["gpu"] not in GPUS or not row["step_s"] or any(word in row["note"] for word in skip):
            continue
        gpus, pipeline = int(row["gpus"]), int(row["pp"] or 1)
        data = gpus // (int(row["tp"] or 1) * pipeline * int(row.get("cp") or 1))
        # A pipeline has as many micro-batches as stages where a source does not say it: the default of its program.
        micro = row.get("mbs") or str(max(1, int(row["gbs"]) // data // pipeline))
        settings = {"MODEL_FAMILY": row["family"], **_sizes(row), "MICRO_BATCH": micro, "VOCAB_SIZE": row["vocab"]}
        settings |= {"DTYPE": row["dtype"], "ZERO_STAGE": row["zero"] if data > 1 else "0", "SP": row.get("cp") or "1"}
        settings |= {"VIRTUAL_STAGES": row.get("vp") or "1", "RECOMPUTE": row.get("recompute") or "none"}
        settings |= {"SCATTER_NORMS": row.get("sequence_parallel") or "0"}
        if row["family"] == "gpt":
            settings["HIDDEN_DROPOUT"] = "0.1" if row["dtype"] == "fp16" else "0"
        if row["zero"] == "3":
            settings["COMMUNICATION_DATA_TYPE"] = "fp32"
            if row["tp"] != "1":
                settings["SCATTER_NORMS"] = "1"
        if row["zero"] == "3" and pipeline > 1:
            # Of a pipeline weights stay gathered from one micro-batch to the next.
            settings |= {"PIPELINE_SPLIT": "ends", "ZERO_STAGE": "1"}
        yield Row(row["source"], _system(row), GPUS[row["gpu"]], settings, gpus, float(row["step_s"]), "s",
                  *_named(suite, row["model"]), row.get("sweep") or "")  # fmt: skip


def _system(row: Cells) -> str:
    name = row["system"]
    if name == "torchtitan":
        name += "-eager" * (row["compile"] == "0") + "-fp8" * (row["fp8"] == "1")
        return name + "-async" * (row["overlap"] == "async TP")
    if name in ("megatron-bridge", "nemo"):
        return "megatron-core-fp8" if row["fp8"] not in ("", "0") else "megatron-core"
    if name == "llm-foundry":
        return name + "-fp8" * (row["fp8"] == "1")
    return {"megatron-2019": "megatron-2021", "deepspeed-2019": "zero-2020"}.get(name, name)


TESTS = {
    "gpt3_7b_tp4_pp1_memory_speed": {"MICRO_BATCH": "2", "GLOBAL_BATCH": "8", "SEQ": "8192", "VOCAB_SIZE": "131073"},
    "gpt3_7b_tp1_pp4_memory_speed": {"MICRO_BATCH": "1", "GLOBAL_BATCH": "16", "SEQ": "8192", "VOCAB_SIZE": "131073"},
}
PLATFORMS = {"dev_dgx_h100": "h100", "dev_dgx_a100": "a100-dgx"}


def _tests() -> Iterator[Row]:
    for row in cells("megatron_memory.csv"):
        if row["test"] not in TESTS or row["platform"] not in PLATFORMS:
            continue
        settings = {"MODEL_FAMILY": "gpt", "NLAYERS": row["num-layers"], "HIDDEN": row["hidden-size"]}
        settings |= {"HEADS": row["num-attention-heads"], "NUM_KV_HEAD": row["num-query-groups"]}
        settings |= {**TESTS[row["test"]], "TP": row["tensor-model-parallel-size"], "RECOMPUTE": "none"}
        settings |= {"PP": row["pipeline-model-parallel-size"], "ZERO_STAGE": "1", "TIED_EMBEDDINGS": "0"}
        settings |= {"MICRO_BATCH": row["micro-batch-size"], "GLOBAL_BATCH": row["global-batch-size"]}
        seconds = float(row["iter_time_s_median"])
        yield Row(row["path"], "megatron-core-tests", PLATFORMS[row["platform"]], settings, 8, seconds, "s",
                  *_named("tests", "GPT3-7B"))  # fmt: skip
