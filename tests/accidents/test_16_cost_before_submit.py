"""Row 16: jobs were submitted and nobody knew what they would cost, or what their checkpoints would fill.

The dry run of a submission says it: host-hours, jobs, energy, CO2, disk. Nothing is submitted.
"""

from __future__ import annotations

import re


def test_the_dry_run_of_a_submission_says_what_the_run_costs(megads):
    words = ("train", "--submit", "--preset", "7B", "--nodes", "4", "--account", "P", "--dry-run")
    large = {"NLAYERS": "24", "HIDDEN": "1024", "HEADS": "16", "NUM_KV_HEAD": "16", "FFN_HIDDEN_SIZE": "4096"}
    run = {"MACHINE": "polaris", "SEQ": "2048", "GLOBAL_BATCH": "256", "DTYPE": "bf16", "TRAIN_ITERS": "100000"}
    done = megads(*words, WALLTIME="6:00:00", SAVE_INTERVAL="1000", **{**large, **run})
    assert done.returncode == 0, done.stderr
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("megads: cost")]
    assert "1 job of 4 hosts x 6h00m: at most 24 host-hours" in line
    assert re.search(r"in \d+ jobs, [\d.]+ host-hours, [\d.]+k? kWh, [\d.]+k? kg CO2, checkpoints of [\d.]+ GiB", line)
    assert re.search(r"; --chain \d+ submits all of them$", line)
    assert done.stdout.startswith("#!/bin/bash")
    assert not (megads.folder / "runs").exists()
