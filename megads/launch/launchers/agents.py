"""Starters of one host: the command itself, our own, and agents (torchrun, DeepSpeed) that start the ranks of theirs.

For several hosts another launcher starts an agent on each.
"""

from __future__ import annotations

import json
import shlex

from megads.cluster.hosts import this_host
from megads.cluster.ranks import EXPLICIT
from megads.errors import LaunchError
from megads.launch.launchers.call import (
    LONGEST_WORD,
    Call,
    Launcher,
    Start,
    agents_of,
    cores_to_set,
    rank_words,
)
from megads.launch.launchers.plan import IN_PLACE
from megads.launch.schedulers.allocation import is_here
from megads.text.plural import plural


def direct(call: Call) -> Start:
    """Return the command itself: one rank, in the place of this process.

    Raises:
        LaunchError: there are several ranks, or the rank belongs on another host.
    """
    size = call.allocation.world_size
    if size != 1:
        raise LaunchError(
            f"LAUNCH_WITH=direct starts one rank and this run has {size}; "
            "use LAUNCH_WITH=local, openmpi or mpich, or NGPU_PER_HOST=1"
        )
    _require_this_host(call, "direct")
    # Inside `srun --pty bash` SLURM's own variables would call this rank 0 of several.
    return Start(call.command, {**dict(zip(EXPLICIT, "0101", strict=True)), IN_PLACE: "1"})


def local(call: Call) -> Start:
    """Build our own launcher of one host: it imports no torch, so ranks start a second earlier than under torchrun.

    Raises:
        LaunchError: ranks belong on another host.
    """
    _require_this_host(call, "local")
    command = _bound_command(call, LOCAL)
    return Start((call.python, "-m", "megads.launch.launchers.local", str(call.allocation.world_size), *command))


def _bound_command(call: Call, launcher: Launcher) -> tuple[str, ...]:
    """Return the command of a rank, bound to its cores without help of ``launcher``, which has no option for that.

    Raises:
        LaunchError: CPU_BIND is neither a list of cores nor ``none``, or there is no ``taskset``.
    """
    if call.binding.option:
        raise LaunchError(
            f"CPU_BIND={call.binding.option}: {launcher.name} has no such option; use CPU_BIND=list:0-7:8-15 "
            "with one list for each rank of a host, or none"
        )
    cores = cores_to_set(call)
    return rank_words(call.command, launcher.local_rank, cores) if cores else call.command


def _require_this_host(call: Call, name: str) -> None:
    if not call.local:
        hosts = call.allocation.hosts
        other = next((host for host in hosts if not is_here(host, call.env)), hosts[0])
        raise LaunchError(f"LAUNCH_WITH={name} starts ranks on this host ({this_host()}), and the run is on {other}")


def torchrun(call: Call) -> Start:
    """Build the agent of a run on this host alone."""
    return Start((call.python, *_torchrun(call, "--node-rank=0")))


def _torchrun(call: Call, node_rank: str) -> tuple[str, ...]:
    # Static rendezvous: nothing is negotiated, so nothing but the address can be wrong. Without a folder for
    # logs, which ranks write themselves, it would leave an empty one in TMPDIR.
    command = _bound_command(call, TORCHRUN)
    return (
        "-m", "torch.distributed.run", f"--nnodes={len(call.allocation.hosts)}", node_rank, "--rdzv-backend=static",
        f"--nproc-per-node={_even(call, 'torchrun')}",
        f"--master-addr={call.added['MASTER_ADDR']}", f"--master-port={call.added['MASTER_PORT']}",
        "--max-restarts=0", "--log-dir=/dev/null", "--no-python",
        *command,
    )  # fmt: skip


def deepspeed(call: Call) -> Start:
    """Build DeepSpeed's launcher for a run on this host alone."""
    argv, start = _deepspeed(call, ())
    return Start((call.python, *argv), start.env, start.files)


def _deepspeed(call: Call, where: tuple[str, ...]) -> tuple[tuple[str, ...], Start]:
    command, each = _bound_command(call, DEEPSPEED), _even(call, "deepspeed")
    # It numbers the devices itself and forgets a mask, unless the mask is what it is to use.
    mask = call.env.get("CUDA_VISIBLE_DEVICES", "").split(",")
    shown = [int(word) for word in mask if word.strip().isdigit()][:each]
    named = len(shown) == each
    path, files = call.host_file(f"{{host}} slots={max(shown) + 1 if named else each}", "hosts.deepspeed")
    _refuse_too_many_hosts(call, each)
    included = "@".join(f"{host}:{','.join(map(str, shown))}" for host in call.allocation.hosts)
    argv = (
        "-m", "deepspeed.launcher.runner", f"--hostfile={path}", *where, "--no_ssh_check",
        *((f"--include={included}",) if named else ()),
        f"--master_addr={call.added['MASTER_ADDR']}", f"--master_port={call.added['MASTER_PORT']}",
        "--no_python", "--no_local_rank",
        *command,
    )  # fmt: skip
    # It sets LOCAL_SIZE, which nobody else reads.
    return argv, Start((), {"LOCAL_WORLD_SIZE": str(each)}, files)


def _refuse_too_many_hosts(call: Call, each: int) -> None:
    """Refuse more hosts than DeepSpeed's runner can name to its launcher: all of them in one word, in base64.

    Raises:
        LaunchError: that word would be too long.
    """
    world = json.dumps({host: list(range(each)) for host in call.allocation.hosts})
    size = len("--world_info=") + -(-len(world.encode()) // 3) * 4
    if size > LONGEST_WORD:
        raise LaunchError(
            f"LAUNCH_WITH=deepspeed on {len(call.allocation.hosts)} hosts: DeepSpeed's runner passes them to "
            f"its launcher in one argument of {size} bytes, and Linux allows {LONGEST_WORD}; use the launcher "
            "of the scheduler (LAUNCH_WITH=auto) or torchrun"
        )


def torchrun_agents(call: Call, under: Launcher) -> Start:
    """Build a line of ``under`` that starts a torchrun agent on every host."""
    return _agents(call, under, _torchrun(call, _NODE), Start(()))


def deepspeed_agents(call: Call, under: Launcher) -> Start:
    """Build a line of ``under`` that starts DeepSpeed's launcher on every host, each for its own ranks.

    The file of hosts is read on every host, so the run folder has to be shared, as it is.
    """
    argv, start = _deepspeed(call, ("--no_ssh", _NODE))
    return _agents(call, under, argv, start)


_NODE = "--node_rank=$NODE"


def _agents(call: Call, under: Launcher, argv: tuple[str, ...], start: Start) -> Start:
    """Start ``argv`` on every host, with the number of the host in the place of ``$NODE``."""
    at = argv.index(_NODE)
    before, after = shlex.join(argv[:at]), argv[at + 1 :]
    # The ranks must not take the number of their agent for their own.
    script = f'n=${under.rank}; unset {under.numbers}; exec "$0" {before} --node_rank="$n" "$@"'
    outer = under.build(agents_of(call, ("sh", "-c", script, call.python, *after)))
    return Start(outer.argv, outer.env | start.env, outer.files | start.files)


def _even(call: Call, name: str) -> int:
    allocation = call.allocation
    if len(allocation.hosts) == 1:
        return allocation.world_size
    if allocation.world_size != len(allocation.hosts) * allocation.ranks_per_host:
        raise LaunchError(
            f"LAUNCH_WITH={name} starts {plural(allocation.ranks_per_host, 'rank')} on each of "
            f"{plural(len(allocation.hosts), 'host')}, and {allocation.world_size} do not fill them; "
            f"use a multiple of {allocation.ranks_per_host}"
        )
    return allocation.ranks_per_host


OURS = "MEGADS_RANK MEGADS_LOCAL_RANK"
DIRECT = Launcher("direct", direct, OURS, remote=False, in_place=True)
LOCAL = Launcher("local", local, OURS, remote=False)
TORCHRUN = Launcher("torchrun", torchrun, remote=False, forwards_signals=False)
DEEPSPEED = Launcher("deepspeed", deepspeed, remote=False, forwards_signals=False)
AGENTS = {"torchrun": torchrun_agents, "deepspeed": deepspeed_agents}
