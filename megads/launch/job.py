"""A run that is prepared: what was decided, what of it is written into the run folder, and what is printed."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from megads.checkpoint.resume.compatibility import checkpoint_folder
from megads.config.machine_facts import Facts
from megads.config.run_folder import COMMAND, COMMAND_ONCE_SAVED, CONFIG, LOG_FILE, save_config, write_whole
from megads.config.schema import RunConfig
from megads.config.setting import takes_word
from megads.config.sources.resolve import Resolved, settings
from megads.config.tree import env_name, extra, fields, value_of
from megads.errors import ConfigError, MegadsError
from megads.launch.launchers.plan import LaunchPlan
from megads.launch.preflight.banner import banner
from megads.launch.preflight.checkpoint_start import StartPoint, settings_used_once, start_line
from megads.launch.preflight.disk_space import DiskRoom, disk_room
from megads.launch.preflight.prediction import predict_run
from megads.launch.request import TrainRequest
from megads.launch.run_folder import Folder, append_to_log
from megads.launch.schedulers.allocation import Allocation
from megads.launch.supervise.record import attempt_of
from megads.monitor.log import coloured, may_colour
from megads.monitor.run_state.attempts import read_attempts
from megads.monitor.run_state.links import link_line
from megads.plan.memory import Memory
from megads.plan.pipeline import pipeline_lines
from megads.plan.prediction import Prediction, write_prediction
from megads.text.plural import plural
from megads.text.secrets import hidden
from megads.text.units import clock, duration

DS_CONFIG = "ds_config.json"
"""Of a run folder: DeepSpeed's dictionary, for people."""


@dataclass(frozen=True)
class Job:
    """Everything that is decided before a rank starts."""

    request: TrainRequest
    resolved: Resolved
    allocation: Allocation
    folder: Folder
    memory: Memory
    available_bytes: int  # of the host, 0 on hosts whose accelerators hold the model
    deepspeed: dict[str, Any] | None  # its dictionary; None: another engine runs
    plan: LaunchPlan
    facts: Facts  # of the machine
    start_point: StartPoint | None = None  # None: with new weights
    lease: str = ""  # token of this job's claim on its folder

    @property
    def run(self) -> RunConfig:
        """The derived settings."""
        return self.resolved.run

    @cached_property
    def prediction(self) -> Prediction:
        """What is expected of a step."""
        return predict_run(self.run, self.allocation, self.memory, self.request.env, self.request.root)


def room_of(job: Job) -> DiskRoom | None:
    """Return what the checkpoints of ``job`` take on disk; a sweep of rates and an evaluation save none."""
    if job.run.lr_finder.enabled or job.run.train.evaluate_only:
        return None
    begun = job.start_point.iteration if job.start_point else 0
    return disk_room(job.run, checkpoint_folder(job.run, job.folder.path), begun)


def write_run_files(job: Job) -> None:
    """Write what the ranks read, and the line that gives this command again, now and once something is saved."""
    folder, origins = job.folder.path, job.resolved.origins
    save_config(job.run, origins, folder / CONFIG)
    write_prediction(folder, job.prediction)
    if job.deepspeed is None:
        (folder / DS_CONFIG).unlink(missing_ok=True)
    else:
        write_whole(folder / DS_CONFIG, json.dumps(job.deepspeed, indent=2) + "\n")
    ranks = {} if job.request.started is None else {"NGPU_PER_HOST": str(job.allocation.ranks_per_host)}
    done = settings_used_once(job.run, folder)
    (folder / COMMAND_ONCE_SAVED).unlink(missing_ok=True)
    for file, without in ((COMMAND, []), (COMMAND_ONCE_SAVED, done))[: 2 if done else 1]:
        names = environment_names({name: origin for name, origin in origins.items() if name not in without})
        options = [option for name in without for option in options_of(name)]
        line = replace(job.request, env={**ranks, **job.request.env}).command(
            [*(name for name in ranks if name not in names), *names], None if job.folder.named else folder, options
        )
        write_whole(folder / file, f"{line}\n")


def options_of(name: str) -> list[str]:
    """Return the options that give the setting ``name`` a value, as ``TrainRequest.command`` takes them."""
    own = [f"{flag} " if takes_word(value) else flag for flag, value in extra(fields()[name], "flags").items()]
    return [*own, f"--set {name}="]


def environment_names(origins: Mapping[str, Any]) -> list[str]:
    """Return the environment variables that decided a setting."""
    return list(dict.fromkeys(origin.detail.split()[0] for origin in origins.values() if origin.layer == "env"))


def refuse_secrets(run: RunConfig, env: Mapping[str, str]) -> None:
    """Refuse settings that hold a secret: they are written to the run folder, the log and the trackers.

    Raises:
        ConfigError: names the setting, not the secret.
    """
    for name in fields():
        value = value_of(run, name)
        if isinstance(value, str) and value and (shown := hidden(value, env)) != value:
            raise ConfigError(
                f"{env_name(name) or name}={shown} holds a key or password, and settings are written to the run "
                "folder; keep it where its program looks for it (an environment variable, ~/.netrc)"
            )


def describe(job: Job) -> str:
    """Return what ``--dry-run`` prints: settings with origins, DeepSpeed's dictionary, the command."""
    command = job.plan.script() if job.plan.files else job.plan.line()
    lines = [*settings_lines(job.resolved, job.deepspeed), summary(job), *pipeline_lines(job.run)]
    return "\n".join([*lines, "", "command", command])


def settings_lines(resolved: Resolved, deepspeed: Mapping[str, Any] | None) -> list[str]:
    """Return every setting with its origin, and DeepSpeed's dictionary where it is the engine."""
    rows = []
    for name, field in settings():
        value = value_of(resolved.run, name)
        rows.append((name, str(value), extra(field, "unit"), str(resolved.origins[name])))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["settings"]
    lines += [f"  {n:{widths[0]}}  {v:>{widths[1]}} {u:{widths[2]}}  {o}".rstrip() for n, v, u, o in rows]
    return [*lines, "", *([] if deepspeed is None else ["deepspeed", json.dumps(deepspeed, indent=2), ""])]


def summary(job: Job) -> str:
    """Return the banner of ``job``."""
    from megads.data.datasets import read_shards
    from megads.data.sources.epochs import train_shares

    given = job.run.data.file_list or job.run.data.path
    shares = train_shares(job.run, read_shards(job.run)) if given and not job.run.finetune.task else ()
    start = start_line(job.run, job.start_point)
    room = room_of(job)
    disk = room.line() if room else ""
    step = job.prediction.line()
    link = link_line(read_attempts(job.folder.path), attempt_of(job.run, job.allocation))
    about = (job.folder.path, shares, start, disk, step, link)
    return banner(job.run, job.allocation, job.memory, job.available_bytes, *about)


def show_opening(job: Job, plan: LaunchPlan, ends: float, checkpoints: Path, out: IO[str]) -> None:
    """Write notes, banner and command into the run's log and to ``out``.

    The log has the whole command, which is long; the screen has what fits it.
    """
    room = room_of(job)
    more = room.warnings(checkpoints) if room else ()
    notes = "".join(f"megads: {note}\n" for note in (*job.resolved.notes, job.folder.note, *more) if note)
    by = job.request.started.by if job.request.started else ""
    how = f"ranks started by {by}" if by else f"$ {plan.line()}"
    opening = hidden(f"{notes}{summary(job)}{ending_line(ends)}\n", job.request.env)
    append_to_log(job.folder.path, f"{opening}\n{hidden(how, job.request.env)}\n")
    brief = f"launch   {plan.brief()} (full command: {job.folder.path / LOG_FILE})"
    opening += f"launch   ranks started by {by}\n\n" if by else hidden(f"{brief}\n\n", job.request.env)
    out.write(coloured(opening) if may_colour(out) else opening)
    out.flush()


def ending_line(ends: float) -> str:
    """Return the line of the banner that says when the allocation ends, nothing when that is not known."""
    now = time.time()
    if not ends:
        return ""
    left = duration(ends - now) if ends > now else "the past"
    return f"\nends     at {clock(ends, now)}, in {left}; the run saves and exits with 75 before"


def start_line_of(job: Job) -> str:
    """Return the lines that say what starts ranks on the run folder of ``job``."""
    size, hosts = job.allocation.world_size, len(job.allocation.hosts)
    path = shlex.quote(str(job.folder.path))
    where = f"{plural(size, 'rank')} on {plural(hosts, 'host')}"
    agent = f"torchrun --nproc-per-node {size} -m megads worker {path}" if hosts == 1 else ""
    lines = [f"mpiexec -n {size} megads worker {path}", f"srun -n {size} megads worker {path}", agent]
    rows = [f"  {each}" for each in lines if each]
    return "\n".join([f"{path} is prepared for {where}; start them with one of", *rows])


def make_demo_with_bar(run: RunConfig, out: IO[str]) -> None:
    """Make the demo corpus, or find it in the cache, with a progress bar."""
    from megads.data.sources.demo import demo_prefix, make_demo

    if os.path.isfile(demo_prefix(run).with_suffix(".idx")):
        make_demo(run, lambda what, done, total: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    console = Console(file=out)
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        try:
            make_demo(run, show)
        except MegadsError:
            # Half a bar says nothing that the error does not.
            bars.live.transient, console.quiet = True, not console.is_terminal
            raise
