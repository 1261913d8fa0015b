"""A batch job of a training run, whose settings are resolved and checked before it waits, or of any script."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from megads.cluster.machine import known_machine, machine_name
from megads.config.machine_facts import Facts
from megads.config.rules.advice import Attempt
from megads.config.run_files import JOBS
from megads.config.run_folder import save_config, write_whole
from megads.config.schema import RunConfig
from megads.config.sizes import model_degree
from megads.config.sources.env_names import NO_EFFECT, OTHER_NAMES, PROGRAM_NAMES, REFUSED, setting_names
from megads.config.sources.resolve import Resolved
from megads.config.tree import env_name, fields, value_of
from megads.errors import LaunchError
from megads.launch.any_program import launch_settings
from megads.launch.containers.enclose import check_container
from megads.launch.job import refuse_secrets
from megads.launch.nodes.chosen import exclusion_note
from megads.launch.nodes.memory import NodeMemory
from megads.launch.plan_run import hosts_of_this_job, plan_run
from megads.launch.preflight.checkpoint_start import find_start_point, settings_used_once
from megads.launch.preflight.device_memory import constraint_of, device_memory
from megads.launch.preflight.kept_plan import kept_of
from megads.launch.preflight.task_files import check_task_files
from megads.launch.preflight.tracker_packages import choose_trackers
from megads.launch.request import BESIDE_SETTINGS, TrainRequest, folder_of_request
from megads.launch.run_folder import Folder
from megads.launch.run_hosts import RunHosts, on_hosts_that_fit
from megads.launch.schedulers.allocation import Allocation, unnamed_hosts
from megads.launch.schedulers.base import JOB
from megads.launch.schedulers.time_left import parse_walltime
from megads.launch.submit.cost import cost_line
from megads.launch.submit.job_script import (
    JobOptions,
    Place,
    find_place,
    job_name,
    job_of,
    job_text,
    on_cpu,
    refuse_host_file,
    scheduler_on_path,
    send,
)
from megads.plan.memory import check_device
from megads.text.secrets import SHOWN

SUBMITTED = "submitted.yaml"  # the settings it was resolved to; the job writes its own config.yaml


@dataclass(frozen=True)
class Submission:
    """A job that is ready to be handed over."""

    text: str
    place: Place
    folder: Folder
    resolved: Resolved
    chain: int
    cost: str  # a line about it
    private: bool = False  # whether the text holds values that nobody else is to read


def hosts_of_submission(request: TrainRequest, nodes: int) -> RunHosts:
    """Return the hosts that a job of ``nodes`` hosts (0: NHOSTS, or 1) will have; their names are not known yet."""

    def count(run: RunConfig) -> int:
        return request.limited(run).launch.num_hosts or nodes or 1

    def allocate(run: RunConfig, facts: Facts) -> Allocation:
        place, hosts = find_place(run.machine, request.root, request.env), count(run)
        return unnamed_hosts(place.scheduler, hosts, ranks_of_host(run, place, hosts, request.env))

    return RunHosts(submit_machine(request), count, allocate)


def plan_ahead(request: TrainRequest, nodes: int) -> RunConfig:
    """Return the derived settings of the run that ``request`` would start: for what can be made while its job waits.

    Args:
        nodes: hosts of the job it will run in, 0: it will run here, on the hosts that are there now.

    Raises:
        MegadsError: the first rule that the settings break.
    """
    where = partial(hosts_of_submission, nodes=nodes) if nodes else hosts_of_this_job
    return on_hosts_that_fit(request, where, plan_run, submits=bool(nodes))[1].run


def prepare_submission(request: TrainRequest, options: JobOptions, cwd: Path) -> Submission:
    """Resolve and check a run for ``options.nodes`` hosts and write its job; nothing is submitted.

    Raises:
        MegadsError: the first rule that the settings, the data or the job break.
    """
    from megads.data.check import check_data

    where = partial(hosts_of_submission, nodes=options.nodes)
    request, planned = on_hosts_that_fit(request, where, plan_run, submits=True)
    asked, world_size, used = planned.asked, planned.allocation.world_size, len(planned.allocation.hosts)
    nodes = options.nodes or used
    check_container(asked.run.launch, request.env, cwd)
    refuse_host_file(asked.run.launch.hostfile)
    if used > nodes:
        raise LaunchError(f"NHOSTS={used} is more than the {nodes} hosts of the job; pass --nodes {used}")
    place = find_place(asked.run.machine, request.root, request.env)
    # The job decides again: a key may be there that is not here. What is refused there is refused here.
    choose_trackers(planned.resolved, request.env)
    refuse_secrets(planned.run, request.env)
    resolved = _check_devices(planned.resolved, world_size, place, options, request.env, planned.attempt)
    run = resolved.run
    # Whether the order of the samples fits is asked again on a host of the job; this one may be smaller.
    check_data(run.model_copy(update={"train": run.train.model_copy(update={"force": True})}), planned.vocab_size)
    check_task_files(run)
    if not run.launch.walltime:
        raise LaunchError("a job needs its longest time; pass --walltime 6:00:00")
    folder = folder_of_request(request, asked.run, run, submits=True)
    if folder.note and run.checkpoint.use_args and request.model_of is None:
        return prepare_submission(replace(request, model_of=folder.run_dir(run)), options, cwd)
    start_point = find_start_point(run, folder.path)
    if request.kept is None and (kept := kept_of(resolved, start_point)):
        return prepare_submission(replace(request, kept=kept), options, cwd)
    resolved = replace(resolved, notes=(*resolved.notes, *request.fit_notes))
    once = settings_used_once(run, folder.path)
    if once and options.chain > 1:
        raise LaunchError(
            f"--chain {options.chain}: every job would start over because of {', '.join(map(env_name, once))}, and "
            "lose what the one before it made; submit one job with it, then the chain without"
        )
    how, bad = place.submission, NodeMemory.of(run.machine, request.env).bad_hosts()
    if note := exclusion_note(bad, how.exclude):
        resolved = replace(resolved, notes=(*resolved.notes, note))
    excluded = (f"{how.exclude}{','.join(sorted(bad))}",) if bad and how.exclude else ()
    restarts = nodes > 1 and run.launch.max_restarts
    job = job_of(
        options,
        place,
        request.env,
        more=(*(how.once if once else ()), *(how.survives if restarts else ()), *excluded),
        nodes=nodes,
        seconds=parse_walltime(run.launch.walltime),
        ranks_per_host=planned.allocation.ranks_per_host,
        name=job_name(run.name),
        output=str((cwd / folder.path / "log").resolve()),
    )
    text = job_text(job, place, _body(request, asked, place, folder, cwd, options.variables))
    seconds = parse_walltime(run.launch.walltime)
    price = cost_line(run, planned.allocation, nodes, seconds, options.chain, request.env, request.root)
    return Submission(text, place, folder, resolved, options.chain, price, private=bool(options.variables))


def _check_devices(
    resolved: Resolved, world_size: int, place: Place, options: JobOptions, env: Mapping[str, str], attempt: Attempt
) -> Resolved:
    """Return the settings, with a note where a rank may not fit its device; refuse a run that cannot.

    Raises:
        ConfigError: weights, gradients and optimizer alone exceed a device's memory.
    """
    if on_cpu(place, env):
        return resolved
    constraint = constraint_of(options.options, env, place.submit.constraint)
    memory = device_memory(place.facts, constraint if place.scheduler == "slurm" else options.queue)
    tight = check_device(resolved.run, world_size, place.machine, memory.gib, attempt, kind=memory.kind)
    return replace(resolved, notes=(*resolved.notes, tight)) if tight else resolved


def submit(submission: Submission, env: Mapping[str, str]) -> list[str]:
    """Keep what is submitted in the run folder, submit it, and return the ids of the jobs.

    Raises:
        ConfigError: the run folder cannot be written.
        LaunchError: the scheduler's program is missing, or refuses the job.
    """
    folder = submission.folder.path
    write_whole(folder / JOB, submission.text, private=submission.private)
    save_config(submission.resolved.run, submission.resolved.origins, folder / SUBMITTED)
    (folder / "log").mkdir(exist_ok=True)
    return send(
        submission.text,
        submission.place.scheduler,
        env,
        chain=submission.chain,
        keep=lambda jobs: write_whole(folder / JOBS, "".join(f"{job}\n" for job in jobs)),
    )


def submit_machine(request: TrainRequest) -> str:
    """Return the machine that jobs from this host run on: a login node has no accelerator and is of it all the same."""
    if request.env.get("MACHINE"):
        return machine_name(request.hostname, request.env, request.root)
    if found := known_machine(request.hostname, request.env, request.root):
        return found
    if request.env.get("MEGADS_DEVICE") == "cpu":
        return "cpu"
    return scheduler_on_path(request.env) or machine_name(request.hostname, request.env, request.root)


def without_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` without variables that are settings here or in other toolkits; MACHINE stays.

    A job takes its settings from its command line alone: what the shell that submitted it or a
    start-up file exports changes nothing.
    """
    dropped = _read_as_settings()
    return {name: value for name, value in env.items() if name not in dropped}


def _read_as_settings() -> set[str]:
    return {*setting_names(), *REFUSED, *NO_EFFECT, *OTHER_NAMES} - {"MACHINE"}


def program_lines(request: TrainRequest, machine: str, variables: tuple[str, ...] = ()) -> list[str]:
    """Return shell lines that give a job the variables of this program that hold here, and no others.

    The Python of this command is used in the job too: on top of the machine's modules, unless
    the user gave it as MEGADS_PYTHON, which says that everything is set up already.
    """
    given = {name: request.env[name] for name in (*BESIDE_SETTINGS, "MEGADS_PYTHON") if request.env.get(name)}
    if given.get("MEGADS_PYTHON") == request.env.get("MEGADS_FOUND_PYTHON"):
        given.pop("MEGADS_PYTHON", None)
    if "MEGADS_PYTHON" not in given:
        given["MEGADS_ACTIVE"] = str(Path(request.python).parent.parent)
    given |= {"MACHINE": machine, "MEGADS_ROOT": str(request.root.resolve())}
    given |= dict(_variable(text, request.env) for text in variables)
    stale = sorted({*PROGRAM_NAMES, "MEGADS_ACTIVE", "MEGADS_COMMAND", "MEGADS_FOUND_PYTHON"} - given.keys())
    return [f"unset {' '.join(stale)}", *(f"export {name}={shlex.quote(text)}" for name, text in given.items())]


def without_values(text: str, variables: tuple[str, ...]) -> str:
    """Return the text of a job with ``***`` in the place of what ``--env NAME=VALUE`` gave to no setting."""
    for variable in variables:
        name, equals, value = variable.partition("=")
        if equals and value and name not in setting_names():
            text = text.replace(f"export {name}={shlex.quote(value)}", f"export {name}={SHOWN}")
    return text


def _variable(text: str, env: Mapping[str, str]) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not name.isascii():
        raise LaunchError(f"--env {name!r}: not the name of a variable; expected NAME or NAME=VALUE")
    if not equals and name not in env:
        raise LaunchError(f"--env {name}: it is not set in this shell; pass --env {name}=VALUE")
    return name, value if equals else env[name]


def ranks_of_host(run: RunConfig, place: Place, hosts: int, env: Mapping[str, str]) -> int:
    """Return the ranks on each of ``hosts`` hosts of a job.

    Raises:
        LaunchError: nobody says how many.
    """
    known = run.launch.ranks_per_host or place.facts.ranks_per_host
    if known:
        return known
    if on_cpu(place, env):
        wanted = model_degree(run) * max(run.parallel.data, 1)
        return -(-wanted // hosts)
    raise LaunchError(
        f"machine {place.machine} does not say how many accelerators a host has; set NGPU_PER_HOST "
        "(MEGADS_DEVICE=cpu submits a run without)"
    )


def _body(
    request: TrainRequest, asked: Resolved, place: Place, folder: Folder, cwd: Path, variables: tuple[str, ...]
) -> list[str]:
    words = ["bash", str(request.root.resolve() / "launchers/train.sh"), "--no-env"]
    if asked.run.preset:
        words += ["--preset", asked.run.preset]
    for name, value in given_settings(asked, folder).items():
        words += ["--set", f"{name}={value}"]
    for text in variables:
        if (name := text.partition("=")[0]) in _read_as_settings():
            raise LaunchError(
                f"--env {text}: {name} is a setting; the job takes settings from this command: {name}=..."
            )
    return [f"cd -- {shlex.quote(str(cwd))}", *program_lines(request, asked.run.machine, variables), _command(words)]


def given_settings(asked: Resolved, folder: Folder) -> dict[str, str]:
    """Return every setting that the environment or the command line gave, as ``--set`` takes it, and the run folder."""
    given = {
        name: _text(value_of(asked.run, name))
        for name in fields()
        if asked.origins[name].layer in ("env", "cli") and name not in ("preset", "machine", "dir")
    }
    return {"dir": str(folder.path), **given}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _command(words: list[str]) -> str:
    """Return one command, a line for each option, that takes the place of the job's shell."""
    quoted = [shlex.quote(word) for word in words]
    return " ".join(["exec", *(f"\\\n  {word}" if word.startswith("--") else word for word in quoted)])


def script_job(
    request: TrainRequest, options: JobOptions, walltime: str, script: str, words: Sequence[str], cwd: Path
) -> tuple[str, str]:
    """Return the job that runs ``script`` with ``words`` in ``cwd``, and its scheduler.

    Variables of the environment that are settings go along, which PBS would drop.

    Raises:
        ConfigError: a value that is none, or cannot be in a directive.
        LaunchError: what the machine's jobs need is missing.
    """
    if not walltime:
        raise LaunchError("a job needs its longest time; pass --walltime 1:00:00")
    machine = submit_machine(request)
    place = find_place(machine, request.root, request.env)
    refuse_host_file(request.env.get("HOSTFILE", ""))
    if request.env.get("CONTAINER"):
        run, _ = launch_settings({**request.env, "MACHINE": machine}, request.hostname, request.root, {})
        check_container(run.launch, request.env, cwd)
    given = request.env.get("NGPU_PER_HOST", "")
    hosts = request.env.get("NHOSTS", "")
    ranks = int(given) if given.isdigit() else place.facts.ranks_per_host or int(on_cpu(place, request.env))
    job = job_of(
        options,
        place,
        request.env,
        nodes=options.nodes or (int(hosts) if hosts.isdigit() else 0) or 1,
        seconds=parse_walltime(walltime, "--walltime"),
        ranks_per_host=ranks,
        name=job_name(Path(script).stem),
    )
    apart = {"MACHINE", "WALLTIME", *(text.partition("=")[0] for text in options.variables)}
    settings = {name: request.env[name] for name in setting_names() if request.env.get(name) and name not in apart}
    settings["WALLTIME"] = walltime  # a host of the job need not have a program to request for it
    body = [
        f"cd -- {shlex.quote(str(cwd))}",
        *program_lines(request, machine, options.variables),
        *(f"export {name}={shlex.quote(value)}" for name, value in settings.items()),
        f"exec bash {shlex.join([script, *words])}",
    ]
    return job_text(job, place, body), place.scheduler
