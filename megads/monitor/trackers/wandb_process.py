"""The process that talks to Weights & Biases: ``python -m ...wandb_process RUN ID OFFSET [--resume]``.

It reads rows from ``metrics.jsonl`` from a byte on, until its standard input has the line ``end``,
and reports on its standard output. Without that line the run ended badly.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from select import select
from typing import IO, Any

from megads.config.run_files import CONFIG, METRICS
from megads.config.run_folder import load_config
from megads.config.schema import RunConfig
from megads.config.tree import fields, value_of
from megads.monitor.rows import Damage, parse_rows
from megads.text.secrets import hidden

PROJECT = "megads"
AXIS = "iteration"
POLL_S = 1.0  # between looks at the file
LINGER_S = 60  # the longest that this process outlives the rank


def main(words: list[str]) -> int:
    """Send rows until there are no more; return the exit code of this process."""
    run_dir, run_id, offset, resume = Path(words[0]), words[1], int(words[2]), "--resume" in words
    # A terminal's Ctrl-C and a scheduler's warning are for the rank, which then says "end".
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    os.nice(10)
    settings = load_config(run_dir / CONFIG)
    history = History(begin(settings, run_dir, run_id, resume=resume))
    with open(run_dir / METRICS, "rb") as rows:
        rows.seek(offset)
        ended_well = history.follow(rows, sys.stdin)
    signal.alarm(LINGER_S)  # nobody may be left to end it
    history.run.finish(exit_code=0 if ended_well else 1)
    return 0


def begin(settings: RunConfig, run_dir: Path, run_id: str, *, resume: bool) -> Any:
    """Return the library's run; one that is kept offline when its server does not answer in time."""
    import wandb

    mode = settings.track.wandb_mode
    try:
        run = wandb.init(settings=options(settings, run_dir, run_id, mode, resume=resume), config=config_of(settings))
    except Exception as error:
        if mode != "online":
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        report(f"kept offline, because it cannot be reached: {reason}")
        mode = "offline"
        wandb.teardown()  # its service takes the run's id for used
        run = wandb.init(settings=options(settings, run_dir, run_id, mode, resume=False), config=config_of(settings))
    run.define_metric(AXIS, hidden=True)
    run.define_metric("*", step_metric=AXIS)
    folder = Path(run.dir).parent
    report(str(run.url) if mode == "online" else f"offline; `wandb sync {folder}` sends it")
    return run


def options(settings: RunConfig, run_dir: Path, run_id: str, mode: Any, *, resume: bool) -> Any:
    """Return the library's settings: no console, no code, no environment, no file outside the run folder."""
    import wandb

    track = settings.track
    return wandb.Settings(
        mode=mode,
        root_dir=str(run_dir),
        run_id=run_id,
        resume="allow" if resume and mode == "online" else None,
        project=track.wandb_project or PROJECT,
        entity=track.wandb_entity or None,
        run_group=track.wandb_group or None,
        run_name=track.wandb_name or settings.name or run_dir.name,
        init_timeout=track.wandb_timeout_s,
        console="off",
        silent=True,
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )


def config_of(settings: RunConfig) -> dict[str, Any]:
    """Return every setting by its dotted name, without what could be a secret."""
    values = {name: value_of(settings, name) for name in fields()}
    return {name: hidden(value) if isinstance(value, str) else value for name, value in values.items()}


class History:
    """Hands rows to a run of the library; those of one iteration become one point."""

    def __init__(self, run: Any):
        self.run, self.step = run, 0

    def follow(self, rows: IO[bytes], orders: IO[str]) -> bool:
        """Take rows as they come until ``orders`` has a line, or ends; return whether the line is ``end``."""
        rest = b""
        while True:
            is_over = bool(select([orders], [], [], POLL_S)[0])
            lines, end, rest = (rest + rows.read()).rpartition(b"\n")
            for row in parse_rows(lines + end, Damage()):
                self.write({key: value for key, value in row.items() if value is not None})
            if is_over:
                return orders.readline() == "end\n"

    def write(self, row: dict[str, Any]) -> None:
        """Log one row. One that comes late, of a save in the background, goes to the step that is on."""
        if row[AXIS] < self.step:
            row = {key: value for key, value in row.items() if key != AXIS}
        self.step = max(self.step, row.get(AXIS, 0))
        self.run.log(row, step=self.step)


def report(text: str) -> None:
    """Write one line for the run's log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
