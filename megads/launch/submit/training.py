"""A training run as a batch job: settings that were resolved and checked before it waits in a queue."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from megads.cluster.machine import known_machine, machine_name
from megads.config.deepspeed.dictionary import SETTING_OF
from megads.config.deepspeed.overrides import adopt
from megads.config.derive import attempts, derive
from megads.config.estimate.memory import check_device
from megads.config.rules.advice import Attempt
from megads.config.rules.checks import check
from megads.config.run_folder import save_config, write_whole
from megads.config.schema import RunConfig
from megads.config.sizes import model_degree
from megads.config.sources.env_names import NO_EFFECT, PROGRAM_NAMES, REFUSED, setting_names
from megads.config.sources.env_names_elsewhere import FOREIGN
from megads.config.sources.resolve import Resolved
from megads.config.tree import env_name, fields, value_of
from megads.errors import LaunchError
from megads.launch.preflight.checkpoint_start import beginning_only, find_beginning
from megads.launch.preflight.device_memory import constraint_of, device_memory
from megads.launch.preflight.secret_settings import refuse_secrets
from megads.launch.preflight.tracker_packages import choose_trackers
from megads.launch.request import BESIDE_SETTINGS, TrainRequest, resolve_ask
from megads.launch.run_folder import Folder, choose_folder
from megads.launch.schedulers.time_left import parse_walltime
from megads.launch.submit.job_script import (
    Place,
    Request,
    account_of,
    find_place,
    job_name,
    job_text,
    refuse_host_file,
    scheduler_on_path,
    send,
)
from megads.text.secrets import SHOWN

JOB = "job.sh"  # in the run folder: what was submitted
SUBMITTED = "submitted.yaml"  # the settings it was resolved to; the job writes its own config.yaml
JOBS = "jobs.txt"  # ids of the jobs

NO_KILL = "--no-kill"
"""Of sbatch: the job stays when a host fails, and a restart can leave that host out."""

ONCE = {"pbs": ("-r", "n"), "slurm": ("--no-requeue",)}
"""Options of a job that its scheduler does not start again by itself, when a host failed for instance."""


@dataclass(frozen=True)
class JobOptions:
    """What the command line says of the job itself."""

    nodes: int = 0  # 0: NHOSTS, or 1
    account: str = ""
    queue: str = ""
    chunk: str = ""
    options: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  # NAME or NAME=VALUE, handed to the job
    chain: int = 1


@dataclass(frozen=True)
class Submission:
    """A job that is ready to be handed over."""

    text: str
    place: Place
    folder: Folder
    resolved: Resolved
    chain: int
    private: bool = False  # whether the text holds values that nobody else is to read


def prepare_submission(ask: TrainRequest, wish: JobOptions, cwd: Path) -> Submission:
    """Resolve and check a run for ``wish.nodes`` hosts and write its job; nothing is submitted.

    Raises:
        MegadsError: the first rule that the settings, the data or the job break.
    """
    from megads.data.check import check_data
    from megads.data.tokenizers.of_run import vocab_size_of

    machine = submit_machine(ask)
    first = resolve_ask(ask, machine, wish.nodes)
    nodes = wish.nodes or first.run.launch.num_hosts or 1
    refuse_host_file(first.run.launch.hostfile)
    used = first.run.launch.num_hosts or nodes
    if used > nodes:
        raise LaunchError(f"NHOSTS={used} is more than the {nodes} hosts of the job; pass --nodes {used}")
    asked = resolve_ask(ask, machine, used)
    place = find_place(asked.run.machine, ask.root, ask.env)
    ranks = ranks_of_host(asked.run, place, used, ask.env)
    vocab = vocab_size_of(asked.run)
    resolved = adopt(derive(asked, num_hosts=used, ranks_per_host=ranks, vocab_size=vocab), SETTING_OF)

    def ranks_of(run: RunConfig) -> tuple[int, int]:
        return used, ranks_of_host(run, place, used, ask.env)

    attempt = attempts(asked, ranks_of, vocab, lambda other: adopt(other, SETTING_OF))
    # The job decides again: a key may be there that is not here. What is refused there is refused here.
    choose_trackers(resolved, ask.env)
    refuse_secrets(resolved.run, ask.env)
    check(resolved.run, used * ranks, attempt)
    resolved = _check_devices(resolved, used * ranks, place, wish, ask.env, attempt)
    # Whether the order of the samples fits is asked again on a host of the job; this one may be smaller.
    train = resolved.run.train.model_copy(update={"force": True})
    check_data(resolved.run.model_copy(update={"train": train}), vocab)
    if not resolved.run.launch.walltime:
        raise LaunchError("a job needs its longest time; pass --walltime 6:00:00")
    named = any(value_of(asked.run, name) for name in ("dir", "name", "checkpoint.dir"))
    folder = choose_folder(resolved.run, named=named, in_job=False, fresh=ask.fresh)
    if folder.note and resolved.run.checkpoint.use_args and ask.model_of is None:
        return prepare_submission(replace(ask, model_of=folder.run_dir(resolved.run)), wish, cwd)
    find_beginning(resolved.run, folder.path)
    once = beginning_only(resolved.run, folder.path)
    if once and wish.chain > 1:
        raise LaunchError(
            f"--chain {wish.chain}: every job would start over because of {', '.join(map(env_name, once))}, and "
            "lose what the one before it made; submit one job with it, then the chain without"
        )
    request = Request(
        nodes=nodes,
        seconds=parse_walltime(resolved.run.launch.walltime),
        account=account_of(wish.account, place.scheduler, ask.env),
        queue=wish.queue,
        chunk=wish.chunk,
        options=(*(ONCE[place.scheduler] if once else ()), *_to_survive(resolved.run, nodes, place), *wish.options),
        jobs=wish.chain,
        ranks_per_host=ranks,
        gpus=not on_cpu(place, ask.env),
        name=job_name(resolved.run.name),
        output=str((cwd / folder.path / "log").resolve()),
    )
    text = job_text(request, place, _body(ask, asked, place, folder, cwd, wish.variables))
    return Submission(text, place, folder, resolved, wish.chain, private=bool(wish.variables))


def _check_devices(
    resolved: Resolved, world_size: int, place: Place, wish: JobOptions, env: Mapping[str, str], attempt: Attempt
) -> Resolved:
    """Return the settings, with a note where a rank may not fit its device; refuse a run that cannot.

    Raises:
        ConfigError: weights, gradients and optimizer alone exceed a device's memory.
    """
    if on_cpu(place, env):
        return resolved
    asked = constraint_of(wish.options, env, place.submit.constraint) if place.scheduler == "slurm" else wish.queue
    memory = device_memory(place.facts, asked)
    tight = check_device(resolved.run, world_size, place.machine, memory.gib, attempt, kind=memory.kind)
    return replace(resolved, notes=(*resolved.notes, tight)) if tight else resolved


def _to_survive(run: RunConfig, nodes: int, place: Place) -> tuple[str, ...]:
    """Return options with which the scheduler leaves a job its other hosts when one fails.

    PBS has such an option too; sites advise against it, so it stays the user's choice.
    """
    restarts = nodes > 1 and run.launch.max_restarts
    return (NO_KILL,) if restarts and place.scheduler == "slurm" else ()


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


def submit_machine(ask: TrainRequest) -> str:
    """Return the machine that jobs from this host run on: a login node has no accelerator and is of it all the same."""
    if ask.env.get("MACHINE"):
        return machine_name(ask.hostname, ask.env, ask.root)
    if found := known_machine(ask.hostname, ask.env, ask.root):
        return found
    if ask.env.get("MEGADS_DEVICE") == "cpu":
        return "cpu"
    return scheduler_on_path(ask.env) or machine_name(ask.hostname, ask.env, ask.root)


def on_cpu(place: Place, env: Mapping[str, str]) -> bool:
    """Return whether the job needs no accelerators."""
    return env.get("MEGADS_DEVICE") == "cpu" or (place.facts.device == "cpu" and not env.get("MEGADS_DEVICE"))


def without_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` without variables that are settings here or in other toolkits; MACHINE stays.

    A job takes its settings from its command line alone: what the shell that submitted it or a
    start-up file exports changes nothing.
    """
    dropped = _read_as_settings()
    return {name: value for name, value in env.items() if name not in dropped}


def _read_as_settings() -> set[str]:
    return {*setting_names(), *REFUSED, *NO_EFFECT, *FOREIGN} - {"MACHINE"}


def program_lines(ask: TrainRequest, machine: str, variables: tuple[str, ...] = ()) -> list[str]:
    """Return shell lines that give a job the variables of this program that hold here, and no others.

    The Python of this command is used in the job too: on top of the machine's modules, unless
    the user gave it as MEGADS_PYTHON, which says that everything is set up already.
    """
    given = {name: ask.env[name] for name in (*BESIDE_SETTINGS, "MEGADS_PYTHON") if ask.env.get(name)}
    if given.get("MEGADS_PYTHON") == ask.env.get("MEGADS_FOUND_PYTHON"):
        given.pop("MEGADS_PYTHON", None)
    if "MEGADS_PYTHON" not in given:
        given["MEGADS_ACTIVE"] = str(Path(ask.python).parent.parent)
    given |= {"MACHINE": machine, "MEGADS_ROOT": str(ask.root.resolve())}
    given |= dict(_variable(text, ask.env) for text in variables)
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
    ask: TrainRequest, asked: Resolved, place: Place, folder: Folder, cwd: Path, variables: tuple[str, ...]
) -> list[str]:
    words = ["bash", str(ask.root.resolve() / "launchers/train.sh"), "--no-env"]
    if asked.run.preset:
        words += ["--preset", asked.run.preset]
    for name, value in given_settings(asked, folder).items():
        words += ["--set", f"{name}={value}"]
    for text in variables:
        if (name := text.partition("=")[0]) in _read_as_settings():
            raise LaunchError(
                f"--env {text}: {name} is a setting; the job takes settings from this command: {name}=..."
            )
    return [f"cd -- {shlex.quote(str(cwd))}", *program_lines(ask, asked.run.machine, variables), _command(words)]


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
    lines, line = [], "exec"
    for word in quoted:
        if word.startswith("--"):
            lines.append(line)
            line = f"  {word}"
        else:
            line += f" {word}"
    return " \\\n".join([*lines, line])
