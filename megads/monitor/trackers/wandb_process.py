"""The process that talks to Weights & Biases: ``python -m megads.monitor.trackers.wandb_process RUN ID [--resume]``.

It reads rows from its standard input, one JSON object a line, until the line ``end``, and
says what is worth it on its standard output. Without that line the run ended badly.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from megads.config.run_folder import CONFIG, load_config
from megads.config.schema import RunConfig
from megads.config.tree import fields, value_of
from megads.text.secrets import hidden

PROJECT = "megads"
AXIS = "iteration"
LINGER_S = 60  # the longest that this process outlives the rank


def main(words: list[str]) -> int:
    """Hand rows on until there are no more; return the exit code of this process."""
    run_dir, run_id, resume = Path(words[0]), words[1], "--resume" in words
    # A terminal's Ctrl-C and a scheduler's warning are for the rank, which then says "end".
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    os.nice(10)
    settings = load_config(run_dir / CONFIG)
    history = History(begin(settings, run_dir, run_id, resume=resume))
    ended_well = history.follow(sys.stdin)
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
        say(f"kept offline, because it cannot be reached: {reason}")
        mode = "offline"
        wandb.teardown()  # its service takes the run's id for used
        run = wandb.init(settings=options(settings, run_dir, run_id, mode, resume=False), config=config_of(settings))
    run.define_metric(AXIS, hidden=True)
    run.define_metric("*", step_metric=AXIS)
    folder = Path(run.dir).parent
    say(str(run.url) if mode == "online" else f"offline; `wandb sync {folder}` sends it")
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

    def follow(self, lines: Iterable[str]) -> bool:
        """Take rows until ``end``; return whether it came."""
        for line in lines:
            if line == "end\n":
                return True
            self.write(json.loads(line))
        return False

    def write(self, row: dict[str, Any]) -> None:
        """Log one row. One that comes late, of a save in the background, goes to the step that is on."""
        if row[AXIS] < self.step:
            row = {key: value for key, value in row.items() if key != AXIS}
        self.step = max(self.step, row.get(AXIS, 0))
        self.run.log(row, step=self.step)


def say(text: str) -> None:
    """Write one line for the run's log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
