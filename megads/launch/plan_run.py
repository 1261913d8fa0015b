"""From what the user asked to ranks that run: resolve, check, plan, start."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from megads.cluster.machine import available_memory, machine_name
from megads.cluster.ranks import TOKEN
from megads.config.deepspeed.dictionary import SETTING_OF, deepspeed_config
from megads.config.deepspeed.overrides import adopt
from megads.config.derive import attempts, derive
from megads.config.estimate.memory import Memory, check_fits, estimate
from megads.config.machine_facts import Facts
from megads.config.rules.checks import check
from megads.config.rules.determinism import rank_variables
from megads.config.rules.remarks import remarks
from megads.config.run_folder import COMMAND, COMMAND_ONCE_SAVED, CONFIG, ENDS_AT, LOG_FILE, save_config, write_whole
from megads.config.schema import RunConfig
from megads.config.setting import takes_word
from megads.config.sources.flags import BACKEND
from megads.config.sources.presets import read_machine
from megads.config.sources.resolve import Resolved, settings
from megads.config.tree import extra, fields, value_of
from megads.errors import MegadsError
from megads.launch.preflight.banner import banner
from megads.launch.preflight.banner_data import list_notes
from megads.launch.preflight.capabilities import backend_note, check_host
from megads.launch.preflight.checkpoint_start import (
    Saved,
    StartPoint,
    beginning_only,
    find_beginning,
    go_on,
    keep_schedule,
    plan_end,
    start_line,
)
from megads.launch.preflight.device_memory import check_here
from megads.launch.preflight.disk_space import DiskRoom, disk_room
from megads.launch.preflight.process_limits import check_open_files
from megads.launch.preflight.secret_settings import refuse_secrets
from megads.launch.preflight.tokenizer import check_tokenizer
from megads.launch.preflight.tracker_packages import choose_trackers
from megads.launch.request import TrainRequest, resolve_ask
from megads.launch.run_folder import BATCH_JOB, Folder, append_to_log, choose_folder, claim, claim_checkpoints
from megads.launch.schedulers.allocation import Allocation, find_allocation, find_hosts
from megads.launch.schedulers.notes import job_notes
from megads.launch.schedulers.time_left import ends_at, parse_walltime, started_at
from megads.launch.starters.command import plan_launch, plan_started
from megads.launch.starters.old_variables import WATCHED
from megads.launch.starters.plan import LaunchPlan
from megads.launch.supervise.restart import Restarts
from megads.launch.supervise.run import remove_end, run_plan, say
from megads.launch.user_ranks.entry import even_layout, what_is_ignored
from megads.monitor.colour import coloured, may_colour
from megads.text.plural import plural
from megads.text.secrets import hidden
from megads.text.units import clock, duration, steady_clock


@dataclass(frozen=True)
class Job:
    """Everything that is decided before a rank starts."""

    ask: TrainRequest
    resolved: Resolved
    allocation: Allocation
    folder: Folder
    memory: Memory
    available_bytes: int  # of the host, 0 on hosts whose accelerators hold the model
    deepspeed: dict[str, Any]
    plan: LaunchPlan
    facts: Facts  # of the machine
    begins: StartPoint | None = None  # None: with new weights

    @property
    def run(self) -> RunConfig:
        """The derived settings."""
        return self.resolved.run


def prepare(ask: TrainRequest) -> Job:
    """Decide everything about a run; nothing is written and nothing started.

    Raises:
        MegadsError: the first rule that the settings, the data or the host break.
    """
    from megads.data.check import check_data
    from megads.data.tokenizers.of_run import vocab_size_of

    asked = resolve_here(ask)
    facts = read_machine(asked.run.machine, ask.root).facts
    allocation = find_allocation(asked.run, ask.env, facts, ask.started)
    hosts, per_host = len(allocation.hosts), allocation.ranks_per_host
    vocab = vocab_size_of(asked.run)

    def ranks_of(other: RunConfig) -> tuple[int, int]:
        found = find_allocation(other, ask.env, facts, ask.started)
        return len(found.hosts), found.ranks_per_host

    derived = derive(asked, num_hosts=hosts, ranks_per_host=per_host, vocab_size=vocab, ranks_of=ranks_of)
    resolved = adopt(derived, SETTING_OF)
    attempt = attempts(asked, ranks_of, vocab, lambda other: adopt(other, SETTING_OF))
    run, world_size = resolved.run, allocation.world_size
    if run.launch.walltime:
        parse_walltime(run.launch.walltime)
    check(run, world_size, attempt)
    check_host(run, ask.env)
    rank_variables(run, ask.env)
    check_data(run, vocab)
    memory = estimate(run, world_size)
    on_cpu = run.machine == "cpu" or ask.env.get("MEGADS_DEVICE") == "cpu"
    available = available_memory() if on_cpu else 0
    if available:
        check_fits(run, world_size, per_host, available, ask.hostname, attempt)
    ignored = what_is_ignored(run.launch, ask.started) if ask.started else ()
    tight = "" if on_cpu else check_here(run, allocation, ask.env, facts, attempt)
    backend = backend_note(dict(ask.flags).get(BACKEND, ""), ask.env, facts.device)
    more = (*filter(None, (tight, backend)), *remarks(run, world_size), *list_notes(run), *ignored)
    resolved = replace(resolved, notes=(*resolved.notes, *more))
    named = any(value_of(asked.run, name) for name in ("dir", "name", "checkpoint.dir"))
    in_job = any(ask.env.get(name) for name in BATCH_JOB)
    folder = choose_folder(run, named=named, in_job=in_job, fresh=ask.fresh)
    if folder.note and run.checkpoint.use_args and ask.model_of is None:
        return prepare(replace(ask, model_of=folder.run_dir(run)))
    begins = find_beginning(run, folder.path)
    check_tokenizer(run, begins)
    resolved = choose_trackers(keep_schedule(plan_end(resolved, begins), begins), ask.env)
    run = resolved.run
    refuse_secrets(run, ask.env)
    resolved = replace(resolved, notes=(*resolved.notes, *job_notes(run, allocation, ask.env, folder.path)))
    settings_now = deepspeed_config(run, world_size)
    plan = LaunchPlan((), {})
    job = Job(ask, resolved, allocation, folder, memory, available, settings_now, plan, facts, begins)
    return replace(job, plan=plan_attempt(job, allocation, 0, 0.0))


def worker(ask: TrainRequest, folder: Folder) -> list[str]:
    """Return the command of a rank."""
    return [ask.python, "-m", "megads", "worker", "--config", str(folder.path / CONFIG)]


def list_variables(run: RunConfig, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the run needs by its settings, and that its data lists use.

    Not every starter gives ranks all that is in ``env``.
    """
    from megads.data.sources.file_list import variables_of

    data = run.data
    paths = (data.path, data.valid_path, data.test_path)
    lists = [Path(path) for path in (data.file_list, data.valid_file_list, data.test_file_list) if path]
    named = {name: env[name] for name in sorted(variables_of(paths, lists)) if name in env}
    return {**named, **rank_variables(run, env)}


def resolve_here(ask: TrainRequest) -> Resolved:
    """Return the settings of this host; a machine's own batches follow from the number of hosts.

    Raises:
        ConfigError: a setting is wrong.
        LaunchError: the list of hosts cannot be read.
    """
    machine = machine_name(ask.hostname, ask.env, ask.root)

    first = resolve_ask(ask, machine, 1)
    hosts = even_layout(ask.started)[0] if ask.started else find_hosts(first.run.launch, ask.env)[2]
    return first if len(hosts) == 1 else resolve_ask(ask, machine, len(hosts))


def describe(job: Job) -> str:
    """Return what ``--dry-run`` prints: settings with origins, DeepSpeed's dictionary, the command."""
    command = job.plan.script() if job.plan.files else job.plan.line()
    return "\n".join([*settings_lines(job.resolved, job.deepspeed), summary(job), "", "command", command])


def settings_lines(resolved: Resolved, deepspeed: Mapping[str, Any]) -> list[str]:
    """Return every setting with its origin, and DeepSpeed's dictionary."""
    rows = []
    for name, field in settings():
        value = value_of(resolved.run, name)
        rows.append((name, str(value), extra(field, "unit"), str(resolved.origins[name])))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["settings"]
    lines += [f"  {n:{widths[0]}}  {v:>{widths[1]}} {u:{widths[2]}}  {o}".rstrip() for n, v, u, o in rows]
    return [*lines, "", "deepspeed", json.dumps(deepspeed, indent=2), ""]


def summary(job: Job) -> str:
    """Return the banner of ``job``."""
    from megads.data.datasets import read_shards
    from megads.data.sources.epochs import train_shares

    given = job.run.data.file_list or job.run.data.path
    shares = train_shares(job.run, read_shards(job.run)) if given else ()
    start = start_line(job.run, job.begins)
    disk = room_of(job).line() if writes_checkpoints(job.run) else ""
    return banner(job.run, job.allocation, job.memory, job.available_bytes, job.folder.path, shares, start, disk)


def writes_checkpoints(run: RunConfig) -> bool:
    """Return whether there is anything to save: a sweep of rates and an evaluation train nothing."""
    return not (run.lr_finder.enabled or run.train.evaluate_only)


def room_of(job: Job) -> DiskRoom:
    """Return what the checkpoints of ``job`` take on disk."""
    from megads.checkpoint.resume.compatibility import checkpoint_folder

    return disk_room(job.run, checkpoint_folder(job.run, job.folder.path), job.begins.iteration if job.begins else 0)


def start(job: Job, out: IO[str], begin: Callable[[LaunchPlan], int] | None = None) -> int:
    """Run ``job`` to its end and return its exit code.

    Args:
        job: what :func:`prepare` decided.
        out: for the banner.
        begin: is called with the plan once the run folder is written and held, instead of launching it.

    Raises:
        MegadsError: the run folder cannot be used, a package is missing, or the data are broken.
    """
    from megads.checkpoint.resume.compatibility import checkpoint_folder
    from megads.data.check import check_data
    from megads.launch.preflight.package_versions import check_versions

    if job.folder.complete:
        out.write(
            f"{job.folder.path} is complete ({plural(job.run.train.train_iters, 'iteration')}); "
            "a larger TRAIN_ITERS trains longer, another RUN_NAME starts a new run\n"
        )
        return 0
    ends = ends_at(job.allocation, job.ask.env, job.run.launch.walltime, started_at(), say=say)
    check_versions(job.run)
    check_open_files(job.allocation.world_size)
    checkpoints = checkpoint_folder(job.run, job.folder.path)
    with claim(job.folder.path), claim_checkpoints(checkpoints, shared=bool(job.run.checkpoint.dir)):
        if not (job.run.data.file_list or job.run.data.path):
            make_demo_with_bar(job.run, out)
            check_data(job.run, job.run.model.vocab_size)
        write_run_files(job)
        plan = plan_attempt(job, job.allocation, 0, ends)
        show_opening(job, plan, ends, checkpoints, out)
        if begin is not None:
            remove_end(job.folder.path)
            return begin(plan)
        if not job.run.launch.max_restarts:
            return run_plan(plan, job.folder.path, job.ask.env)
        now = steady_clock()
        saved = Saved(checkpoints, job.begins.iteration if job.begins else 0)

        def plan_next(allocation: Allocation, attempt: int) -> LaunchPlan:
            if saved.is_any():
                go_on(job.folder.path, job.resolved)
            # By the host's clock of now, which the ranks read; it may have been set since the first start.
            return plan_attempt(job, allocation, attempt, ends and ends + time.time() - now())

        return Restarts(
            job.folder.path,
            saved,
            job.ask.env,
            job.allocation,
            plan=plan_next,
            shrink=lambda allocation: shrink(job, allocation),
            max_restarts=job.run.launch.max_restarts,
            ends_at=ends,
        ).run()


def show_opening(job: Job, plan: LaunchPlan, ends: float, checkpoints: Path, out: IO[str]) -> None:
    """Write notes, banner and command into the run's log and to ``out``.

    The log has the whole command, which is long; the screen has what fits it.
    """
    room = room_of(job).warnings(checkpoints) if writes_checkpoints(job.run) else ()
    notes = "".join(f"megads: {note}\n" for note in (*job.resolved.notes, job.folder.note, *room) if note)
    by = job.ask.started.by if job.ask.started else ""
    how = f"ranks started by {by}" if by else f"$ {plan.line()}"
    opening = hidden(f"{notes}{summary(job)}{ending_line(ends)}\n", job.ask.env)
    append_to_log(job.folder.path, f"{opening}\n{hidden(how, job.ask.env)}\n")
    brief = f"launch   {plan.brief()} (full command: {job.folder.path / LOG_FILE})"
    opening += f"launch   ranks started by {by}\n\n" if by else hidden(f"{brief}\n\n", job.ask.env)
    out.write(coloured(opening) if may_colour(out) else opening)
    out.flush()


def start_line_of(job: Job) -> str:
    """Return the lines that say what starts ranks on the run folder of ``job``."""
    size, hosts = job.allocation.world_size, len(job.allocation.hosts)
    path = shlex.quote(str(job.folder.path))
    where = f"{plural(size, 'rank')} on {plural(hosts, 'host')}"
    agent = f"torchrun --nproc-per-node {size} -m megads worker {path}" if hosts == 1 else ""
    lines = [f"mpiexec -n {size} megads worker {path}", f"srun -n {size} megads worker {path}", agent]
    rows = [f"  {each}" for each in lines if each]
    return "\n".join([f"{path} is prepared for {where}; start them with one of", *rows])


def plan_attempt(job: Job, allocation: Allocation, attempt: int, ends: float) -> LaunchPlan:
    """Return the plan of a start of ``job``; the end of the allocation is in unix seconds, 0: unknown."""
    command, env = worker(job.ask, job.folder), job.ask.env
    extra = {**list_variables(job.run, env), TOKEN: secrets.token_hex(16)}
    extra |= {ENDS_AT: str(int(ends))} if ends else {}
    if job.ask.started:
        return plan_started(allocation, job.ask.started.by, command, env, facts=job.facts, extra=extra).hiding(TOKEN)
    extra[WATCHED] = "1"
    plan = plan_launch(
        job.run, allocation, command, env, facts=job.facts, attempt=attempt, folder=job.folder.path, extra=extra
    )
    return plan.hiding(TOKEN)


def ending_line(ends: float) -> str:
    """Return the line of the banner that says when the allocation ends, nothing when that is not known."""
    now = time.time()
    if not ends:
        return ""
    left = duration(ends - now) if ends > now else "the past"
    return f"\nends     at {clock(ends, now)}, in {left}; the run saves and exits with 75 before"


def shrink(job: Job, allocation: Allocation) -> str:
    """Rewrite the settings of a run for fewer hosts, with the same global batch; return what changed.

    Raises:
        MegadsError: the layout or the global batch does not fit these hosts.
    """
    from megads.data.tokenizers.of_run import vocab_size_of

    batch = job.run.train.global_batch
    asked = resolve_here(replace(job.ask, pairs=(*job.ask.pairs, f"train.global_batch={batch}")))
    vocab = vocab_size_of(asked.run)
    hosts, per_host = len(allocation.hosts), allocation.ranks_per_host
    resolved = adopt(derive(asked, num_hosts=hosts, ranks_per_host=per_host, vocab_size=vocab), SETTING_OF)
    check(resolved.run, allocation.world_size)
    resolved = choose_trackers(keep_schedule(plan_end(resolved, job.begins), job.begins), job.ask.env)
    settings_now = deepspeed_config(resolved.run, allocation.world_size)
    write_run_files(replace(job, resolved=resolved, allocation=allocation, deepspeed=settings_now))
    was, new = job.run, resolved.run
    return (
        f"DP {was.parallel.data} -> {new.parallel.data}, micro-batch {was.train.micro_batch} -> "
        f"{new.train.micro_batch}, accumulation {was.train.grad_acc_steps} -> {new.train.grad_acc_steps}, "
        f"the global batch stays {new.train.global_batch}"
    )


def write_run_files(job: Job) -> None:
    """Write what the ranks read, and the line that gives this command again, now and once something is saved."""
    folder, origins = job.folder.path, job.resolved.origins
    save_config(job.run, origins, folder / CONFIG)
    write_whole(folder / "ds_config.json", json.dumps(job.deepspeed, indent=2) + "\n")
    ranks = {} if job.ask.started is None else {"NGPU_PER_HOST": str(job.allocation.ranks_per_host)}
    done = beginning_only(job.run, folder)
    (folder / COMMAND_ONCE_SAVED).unlink(missing_ok=True)
    for file, without in ((COMMAND, []), (COMMAND_ONCE_SAVED, done))[: 2 if done else 1]:
        names = environment_names({name: origin for name, origin in origins.items() if name not in without})
        options = [option for name in without for option in options_of(name)]
        line = replace(job.ask, env={**ranks, **job.ask.env}).command(
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
