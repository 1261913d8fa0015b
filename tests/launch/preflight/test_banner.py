"""The lines that say what will run."""

from __future__ import annotations

from pathlib import Path

from megads.config.derive import derive
from megads.config.estimate.memory import estimate
from megads.config.sources.resolve import resolve
from megads.launch.preflight.banner import banner
from megads.launch.schedulers.allocation import Allocation

MODEL = {"NLAYERS": "32", "HIDDEN": "64", "HEADS": "8", "SEQ": "64", "TRAIN_ITERS": "10", "DTYPE": "bf16"}


def _lines(env: dict[str, str], ranks: int, start: str = "") -> dict[str, str]:
    resolved = resolve(env={**MODEL, **env}, machine="generic")
    run = derive(resolved, num_hosts=1, ranks_per_host=ranks, vocab_size=1000).run
    text = banner(run, Allocation("none", ("here",), ranks), estimate(run, ranks), 0, Path("runs/x"), start=start)
    return {line[:8].strip(): line[9:] for line in text.splitlines()}


def test_a_plain_run_has_no_line_for_what_it_does_not_use():
    lines = _lines({}, 2)
    assert lines["layout"] == "2 ranks on 1 host: TP=1 PP=1 SP=1 DP=2 ZeRO=1"
    assert list(lines) == ["run", "layout", "model", "batch", "train", "data", "memory"]


def test_it_says_where_the_run_starts():
    assert _lines({}, 1, "random weights, seed 7")["init"] == "random weights, seed 7"


def test_every_part_of_the_layout_has_its_line():
    env = {"PP": "4", "PIPELINE_SPLIT": "7,9,9,7", "TP": "2", "SP": "3", "SEQ": "96", "SCATTER_NORMS": "1"}
    lines = _lines({**env, "RECOMPUTE": "selective", "GRAD_ACC_STEPS": "9", "CPU_OPTIMIZER": "1"}, 24)
    assert lines["layout"] == "24 ranks on 1 host: TP=2 PP=4 SP=3 DP=1 ZeRO=1"
    assert lines["stages"] == "PP=4: 7+9+9+7 layers; pipeline bubble 25% of a step"
    assert lines["sequence"] == "SP=3: 32 tokens per rank; 1 or 2 query heads during attention"
    even = _lines({"SP": "2", "HEADS": "2", "HIDDEN": "16", "SEQ": "96"}, 2)
    assert even["sequence"] == "SP=2: 48 tokens per rank; 1 query head during attention"
    assert lines["norms"] == "scattered over TP=2, with dropout and residual"
    assert lines["again"] == "computed in the backward pass: the attention core, by torch"
    assert lines["offload"] == "optimizer to cpu"


def test_recomputed_layers():
    full = {"RECOMPUTE": "full", "RECOMPUTE_NUM_LAYERS": "4"}
    told = "computed in the backward pass: every layer, in groups of 4, by torch"
    assert _lines(full, 1)["again"] == told
    block = _lines({**full, "RECOMPUTE_METHOD": "block", "DISTRIBUTE_SAVED_ACTIVATIONS": "1", "TP": "2"}, 2)
    told = "the first 4 layers of each stage, by deepspeed; inputs are kept split over TP"
    assert block["again"] == f"computed in the backward pass: {told}"


def test_second_copies_and_weights_on_the_host():
    lines = _lines({"ZERO_STAGE": "3", "ZERO_HPZ_PARTITION_SIZE": "2"}, 4)
    assert lines["hpZ"] == "a second copy of the weights over every 2 ranks of DP x SP"
    assert _lines({"ZERO_STAGE": "3", "OFFLOAD_PARAMS": "cpu"}, 2)["offload"] == "weights to cpu"


def test_a_growing_batch_and_skipped_iterations_have_their_lines():
    env = {"GLOBAL_BATCH": "16", "RAMPUP_BATCH_SIZE": "4 4 60", "SKIP_TRAIN_ITERATION_RANGE": "3-5 9-99"}
    lines = _lines({**env, "TRAIN_ITERS": "20", "NUM_WORKERS": "0"}, 1)
    assert lines["ramp-up"] == "from 4 samples by 4 to 16 over 60 samples: 10 iterations"
    assert lines["train"].startswith(f"20 iterations, {(5 * 4 + 3 * 8 + 2 * 12 + 10 * 16) * 64 / 1e3:.3g}k tokens;")
    assert lines["skips"] == "iterations 3-5 9-99: the data of 15 steps is skipped"
    assert lines["data"] == "demo corpus: this Python's standard library; no prefetch threads"
