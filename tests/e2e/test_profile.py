"""Profiled runs: traces, FLOPs, memory and speed are reported, and the losses are those of a run that is not."""

import gzip
import json

import pytest

from megads.config.run_folder import load_config
from megads.plan.flops import flops_per_token

LAYOUT = {"TP": "2", "RECOMPUTE": "full", "TRAIN_ITERS": "8", "EVAL_INTERVAL": "0", "MEGADS_PEAK_TFLOPS": "0.5"}
# The first three steps have half the batch, and of every other one nothing is reported.
BATCH = {"RAMPUP_BATCH_SIZE": "4 4 12", "LOG_INTERVAL": "2", "SKIP_TRAIN_ITERATION_RANGE": "5-5"}
LOOKS = {"PROFILE": "2-3", "PROFILE_RANKS": "1", "FLOPS_PROFILE": "1", "FLOPS_PROFILE_STEP": "3"}


@pytest.mark.dist
def test_a_run_that_is_looked_at(megads):
    plain = megads.train("plain", **LAYOUT, **BATCH)
    looked = megads.train("looked", **LAYOUT, **BATCH, **LOOKS)
    assert (plain.returncode, looked.returncode) == (0, 0), plain.stderr + looked.stderr
    assert megads.losses("looked") == megads.losses("plain")
    assert not (megads.folder / "plain" / "profile").exists()
    _wrote_a_trace(megads.folder / "looked" / "profile")
    _tells_the_speed_of_each_step(megads)
    _tells_of_memory_once(megads, looked.stdout + looked.stderr)


def _wrote_a_trace(folder):
    # The third step of the start is in the trace, so the fourth is counted; step 4 is the first of 8 samples.
    assert sorted(path.name for path in folder.iterdir()) == [
        "rank-1-flops-4.txt",
        "rank-1-step-2-3.json.gz",
        "rank-1-step-2-3.txt",
    ]
    with gzip.open(folder / "rank-1-step-2-3.json.gz", "rt") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"step 2", "step 3", "aten::mm"} <= names
    assert not {"step 1", "step 4"} & names
    assert "Self CPU" in (folder / "rank-1-step-2-3.txt").read_text()
    text = (folder / "rank-1-flops-4.txt").read_text()
    assert text.startswith("FLOPs of step 4 on rank 1, ")
    assert [line.split()[-1] for line in text.splitlines()[3:7]] == ["+0.00%"] * 4


def _tells_the_speed_of_each_step(megads):
    run = load_config(megads.folder / "plain" / "config.yaml")
    flops = flops_per_token(run)
    rows = [row for row in megads.rows("plain") if "lm_loss" in row]
    assert [(row["iteration"], row["global_batch_size"]) for row in rows] == [(2, 4), (4, 8), (6, 8), (8, 8)]
    for row in rows:
        tokens = row["global_batch_size"] * run.model.seq_length
        assert row["tokens_per_s"] == pytest.approx(tokens / row["step_time_s"])
        assert row["tokens_per_s_per_device"] == pytest.approx(row["tokens_per_s"] / 2)
        assert row["tflops_per_device"] == pytest.approx(row["tokens_per_s"] / 2 * flops.model / 1e12)
        assert row["hardware_tflops_per_device"] == pytest.approx(row["tokens_per_s"] / 2 * flops.hardware / 1e12)
        assert (row["mfu"], row["hfu"]) == (row["tflops_per_device"] / 0.5, row["hardware_tflops_per_device"] / 0.5)
        assert row["hfu"] > row["mfu"] == row["mfu_full"] > row["mfu_causal"] > 0


def _tells_of_memory_once(megads, output):
    path = megads.folder / "looked" / "metrics.jsonl"
    (row,) = [row for row in map(json.loads, path.read_text().splitlines()) if "memory/weights_bytes" in row]
    assert row["iteration"] == 1
    for kind in ("weights", "gradients"):
        assert row[f"memory/{kind}_bytes"] == pytest.approx(row[f"memory/estimated_{kind}_bytes"], rel=0.01)
    assert row["memory/optimizer_bytes"] == pytest.approx(row["memory/estimated_optimizer_bytes"], rel=0.01)
    assert row["memory/host_resident_bytes"] > 10**8
    assert row["memory/largest_rank"] in (0, 1)
    assert "memory/activations_peak_bytes" not in row  # nothing on a CPU tells
    assert "memory   rank 0 holds (estimated): weights " in output
    assert "mfu      of 0.5 TFLOP/s per rank in fp32; causal attention counted in full" in output
