"""Run folders of a chain of jobs, as they are left by ranks and launchers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from megads.monitor.rows import sealed
from megads.monitor.run_state.attempts import Attempt, append_attempt
from megads.monitor.run_state.outcome import Outcome, write_outcome

SPENT = {"set-up": 60.0, "step": 400.0, "save": 40.0}
FIRST = Attempt("101", 0, 1.7e9, 1.7e9 + 600, ("n1", "n2"), 8, "TP 2 PP 1 SP 1 DP 4 ZERO 1", 1, 0, 50, 1,
                "killed", "node", "n2 went down", 5, "n2", "rank 5 was killed by signal 9", ("n2",), SPENT)  # fmt: skip
SECOND = replace(FIRST, attempt=1, started=1.7e9 + 630, ended=1.7e9 + 1230, hosts=("n1", "n3"), began=40, reached=90,
                 exit_code=75, kind="stopped", cause="time", verdict="", rank=-1, host="", message="wall time",
                 excluded=())  # fmt: skip
LAST = replace(SECOND, job="102", attempt=0, started=1.7e9 + 9000, ended=1.7e9 + 9600, hosts=("n9",), num_ranks=4,
               layout="TP 2 PP 1 SP 1 DP 2 ZERO 1", grad_acc_steps=2, began=90, reached=100, exit_code=0, kind="done",
               cause="", message="")  # fmt: skip
CHAIN = (FIRST, SECOND, LAST)


def write_chain(folder: Path, attempts: tuple[Attempt, ...] = CHAIN, loss: float = 3.0) -> Path:
    """Write the files of a run of 100 steps, and return its folder."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("train:\n  train_iters: 100\nmodel:\n  family: gpt\n")
    rows = []
    for step in range(1, 101):
        row = {"iteration": step, "lm_loss": loss - step / 100, "step_time_s": 8.0, "data_wait_s": 0.4}
        row |= {"consumed_tokens": step * 1000, "tokens_per_s": 125.0, "rejected_iterations": int(step >= 33)}
        rows.append(row)
        if step % 20 == 0:
            rows.append({"iteration": step, "valid_loss": loss + abs(step - 60) / 100})
    rows.append({"iteration": 70, "rolled_back_to": 60, "rollbacks": 1, "rollback_reason": "spike"})
    rows.append({"iteration": 100, "energy_kwh": 12.5, "energy_estimated_kwh": 1.25, "co2_kg": 4.0})
    (folder / "metrics.jsonl").write_text("".join(sealed(json.dumps(row)) + "\n" for row in rows))
    for attempt in attempts:
        append_attempt(folder, replace(attempt, ended=0.0))
        append_attempt(folder, attempt)
    write_outcome(folder, Outcome(0, "", 100, "done"))
    return folder
