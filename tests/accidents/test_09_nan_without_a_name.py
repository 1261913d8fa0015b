"""Row 9: a run ended with NaN and nobody knew where; here operator, layer, rank and micro-batch, and a replay."""

from __future__ import annotations

import re

HUGE = {"LR": "1e25", "CLIP_GRAD": "0", "TRAIN_ITERS": "6", "EVAL_INTERVAL": "0", "NGPU_PER_HOST": "2"}


def test_the_first_nan_has_a_name_and_one_rank_computes_it_again(megads):
    run = megads.train("runs/nan", MAX_SKIPPED_STEPS="2", **HUGE)
    assert run.returncode == 2, run.stderr
    lines = [line for line in run.stderr.splitlines() if "first not finite" in line]
    assert len(lines) == 2, run.stderr
    found = re.search(
        r"step (\d): first not finite on rank (\d) \(\S+\): (NaN|Inf) in \d+ of \d+ elements of (aten\.\S+).* in the "
        r"(forward|backward) pass of (\S+), micro-batch 0, .*"
        r"replay it on one rank: megads replay (runs/nan/nonfinite-\S+)$",
        lines[0],
    )
    assert found, lines[0]
    step, operator, which, layer, folder = int(found[1]), found[4], found[5], found[6], found[7]
    again = megads("replay", folder)
    assert again.returncode == 0, again.stdout + again.stderr
    assert re.search(rf"here .* of {re.escape(operator)}.* in the {which} pass of {re.escape(layer)}, ", again.stdout)
    assert f"weights  {folder}/checkpoints/iter_{step - 1:07d}: the weights of the step" in again.stdout
    assert "same     operator, layer and pass" in again.stdout


def test_a_folder_that_is_none_is_named(megads):
    result = megads("replay", "runs/nan")
    assert result.returncode == 2
    assert result.stderr == (
        "megads: runs/nan/report.json: No such file or directory; pass a folder such as RUN/nonfinite-0000007, which a "
        "run makes of a step with NaN or Inf\n"
    )
