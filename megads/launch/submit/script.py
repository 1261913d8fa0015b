"""Any script as a batch job of this machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from megads.config.sources.env_names import setting_names
from megads.errors import LaunchError
from megads.launch.request import TrainRequest
from megads.launch.schedulers.time_left import parse_walltime
from megads.launch.submit.job_script import Request, account_of, find_place, job_name, job_text, refuse_host_file
from megads.launch.submit.training import JobOptions, on_cpu, program_lines, submit_machine


def script_job(
    ask: TrainRequest, wish: JobOptions, walltime: str, script: str, words: Sequence[str], cwd: Path
) -> tuple[str, str]:
    """Return the job that runs ``script`` with ``words`` in ``cwd``, and its scheduler.

    Variables of the environment that are settings go along, which PBS would drop.

    Raises:
        ConfigError: a value that is none, or cannot be in a directive.
        LaunchError: what the machine's jobs need is missing.
    """
    if not walltime:
        raise LaunchError("a job needs its longest time; pass --walltime 1:00:00")
    machine = submit_machine(ask)
    place = find_place(machine, ask.root, ask.env)
    refuse_host_file(ask.env.get("HOSTFILE", ""))
    given = ask.env.get("NGPU_PER_HOST", "")
    hosts = ask.env.get("NHOSTS", "")
    request = Request(
        nodes=wish.nodes or (int(hosts) if hosts.isdigit() else 0) or 1,
        seconds=parse_walltime(walltime, "--walltime"),
        account=account_of(wish.account, place.scheduler, ask.env),
        queue=wish.queue,
        chunk=wish.chunk,
        options=wish.options,
        jobs=wish.chain,
        ranks_per_host=int(given) if given.isdigit() else place.facts.ranks_per_host or int(on_cpu(place, ask.env)),
        gpus=not on_cpu(place, ask.env),
        name=job_name(Path(script).stem),
    )
    apart = {"MACHINE", "WALLTIME", *(text.partition("=")[0] for text in wish.variables)}
    settings = {name: ask.env[name] for name in setting_names() if ask.env.get(name) and name not in apart}
    settings["WALLTIME"] = walltime  # a host of the job need not have a program to ask for it
    body = [
        f"cd -- {shlex.quote(str(cwd))}",
        *program_lines(ask, machine, wish.variables),
        *(f"export {name}={shlex.quote(value)}" for name, value in settings.items()),
        f"exec bash {shlex.join([script, *words])}",
    ]
    return job_text(request, place, body), place.scheduler
