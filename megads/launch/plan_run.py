"""From what the user asked to ranks that run: resolve, allocate, derive, check, plan, start."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

from megads.cluster.machine import available_memory, count_accelerators, machine_name
from megads.cluster.ranks import TOKEN
from megads.config.deepspeed.dictionary import dictionary_of
from megads.config.derive import attempts, derive
from megads.config.machine_facts import Facts
from megads.config.rules.checks import check
from megads.config.rules.stability import rank_variables
from megads.config.run_files import LEASE
from megads.config.run_folder import CONFIG, ENDS_AT, load_config
from megads.config.schema import RunConfig
from megads.config.sources.flags import BACKEND
from megads.config.sources.presets import read_machine
from megads.config.sources.resolve import Resolved
from megads.launch.claims import claim_all
from megads.launch.containers.enclose import check_container, rank_python
from megads.launch.job import Job, make_demo_with_bar, refuse_secrets, show_opening, write_run_files
from megads.launch.launchers.command import plan_launch, plan_started
from megads.launch.launchers.plan import WATCHED, LaunchPlan
from megads.launch.nodes.chosen import host_notes, without_bad
from megads.launch.nodes.memory import NodeMemory
from megads.launch.nodes.probe import probe_of
from megads.launch.preflight.allocator import allocator_variables
from megads.launch.preflight.banner import list_notes
from megads.launch.preflight.capabilities import backend_note, check_host
from megads.launch.preflight.checkpoint_start import (
    Saved,
    check_fits_task,
    find_start_point,
    keep_schedule,
    plan_end,
    resume_from_saved,
)
from megads.launch.preflight.device_memory import check_here, for_long_context
from megads.launch.preflight.kept_plan import kept_of
from megads.launch.preflight.packages import check_versions, settle_engine
from megads.launch.preflight.prediction import predict_run
from megads.launch.preflight.process_limits import check_open_files
from megads.launch.preflight.task_files import check_task_files
from megads.launch.preflight.tracker_packages import choose_trackers
from megads.launch.request import TrainRequest, folder_of_request, resolve_request
from megads.launch.run_hosts import PlannedRun, RunHosts, on_hosts_that_fit
from megads.launch.schedulers.allocation import (
    Allocation,
    find_allocation,
    find_hosts,
    layout_per_host,
    ranks_per_host,
    unnamed_hosts,
)
from megads.launch.schedulers.time_left import ends_at, parse_walltime, started_at
from megads.launch.staging.of_job import staged
from megads.launch.supervise.record import attempt_of, begin_row, first_attempt
from megads.launch.supervise.restart import Restarts
from megads.launch.supervise.run import run_plan
from megads.launch.supervise.watch import say
from megads.launch.user_ranks.entry import even_layout, what_is_ignored
from megads.plan.memory import check_fits, estimate
from megads.plan.remarks import remarks
from megads.text.plural import plural
from megads.text.units import steady_clock


def plan_run(
    request: TrainRequest,
    where: RunHosts,
    *,
    vocab_size: int | None = None,
    check_rules: bool = True,
    finish: Callable[[Resolved], Resolved] = lambda resolved: resolved,
) -> PlannedRun:
    """Resolve the settings of ``request``, allocate hosts, derive what follows, and check every rule of settings.

    Every command that needs derived settings takes them from here.

    Args:
        vocab_size: of the tokenizer; None: as the settings say.
        finish: changes the derived settings before they are checked.

    Raises:
        MegadsError: the first rule that the settings break, or hosts that cannot be allocated.
    """
    asked = resolve_request(request, where.machine)
    hosts = where.count(asked.run)
    if hosts != (asked.run.launch.num_hosts or 1):  # a machine's own batches follow from the number of hosts
        asked = resolve_request(request, where.machine, hosts)
    facts = read_machine(asked.run.machine, request.root).facts
    if vocab_size is None:
        from megads.data.tokenizers.build import vocab_size_of

        vocab_size = vocab_size_of(asked.run)

    def ranks_of(run: RunConfig) -> tuple[int, int]:
        found = where.allocate(run, facts)
        return len(found.hosts), found.ranks_per_host

    allocation = where.allocate(asked.run, facts)
    hosts, per_host = len(allocation.hosts), allocation.ranks_per_host
    derived = derive(asked, num_hosts=hosts, ranks_per_host=per_host, vocab_size=vocab_size, ranks_of=ranks_of)
    if request.settle is not None:
        settled = replace(request, pairs=request.settle(asked, derived.run, request.pairs), settle=None)
        return plan_run(settled, where, vocab_size=vocab_size, check_rules=check_rules, finish=finish)
    asked, derived = for_long_context(asked, derived, allocation, facts)
    resolved, attempt = finish(derived), attempts(asked, ranks_of, vocab_size)
    if check_rules:
        check(resolved.run, allocation.world_size, attempt)
    return PlannedRun(asked, resolved, allocation, facts, vocab_size, attempt)


def hosts_of_this_job(request: TrainRequest) -> RunHosts:
    """Return the hosts of the job that this process is in, or this host."""

    def count(run: RunConfig) -> int:
        limited = request.limited(run)
        return len(even_layout(request.started)[0] if request.started else find_hosts(limited.launch, request.env)[2])

    def allocate(run: RunConfig, facts: Facts) -> Allocation:
        check_container(run.launch, request.env, started=request.started.by if request.started else "")
        return without_bad(find_allocation(request.limited(run), request.env, facts, request.started), run, request.env)

    return RunHosts(machine_name(request.hostname, request.env, request.root), count, allocate)


def hosts_of_machine(request: TrainRequest, *, here: bool = False) -> RunHosts:
    """Return NHOSTS (else 1) hosts of the machine, whatever job this is; ``here``: this host is one of them."""
    machine = machine_name(request.hostname, request.env, request.root)
    devices = count_accelerators(request.env) if here else 0

    def allocate(run: RunConfig, facts: Facts) -> Allocation:
        hosts = run.launch.num_hosts or 1
        ranks = ranks_per_host(run.launch, facts, devices, here=here) or layout_per_host(run, hosts)
        return unnamed_hosts(facts.scheduler, hosts, ranks)

    return RunHosts(machine, lambda run: run.launch.num_hosts or 1, allocate)


def prepare(request: TrainRequest) -> Job:
    """Decide everything about a run; nothing is written and nothing started.

    Raises:
        MegadsError: the first rule that the settings, the data or the host break.
    """
    from megads.data.check import check_data

    request, planned = on_hosts_that_fit(request, hosts_of_this_job, partial(plan_run, finish=settle_engine))
    run, allocation, facts, attempt = planned.run, planned.allocation, planned.facts, planned.attempt
    world_size, env = allocation.world_size, request.env
    if run.launch.walltime:
        parse_walltime(run.launch.walltime)
    check_host(run, env)
    rank_variables(run, env)
    check_data(run, planned.vocab_size)
    check_task_files(run)
    on_cpu = run.machine == "cpu" or env.get("MEGADS_DEVICE") == "cpu"
    here = run.model_copy(update={"machine": "cpu"}) if on_cpu else run  # a CPU keeps more of a forward pass
    memory, available = estimate(here, world_size), available_memory() if on_cpu else 0
    if available:
        check_fits(here, world_size, allocation.ranks_per_host, available, request.hostname, attempt)
    ignored = what_is_ignored(run.launch, request.started) if request.started else ()
    tight = "" if on_cpu else check_here(run, allocation, env, facts, attempt)
    backend = backend_note(dict(request.flags).get(BACKEND, ""), env, facts.device)
    more = (*filter(None, (tight, backend)), *remarks(run, world_size), *list_notes(run), *ignored, *request.fit_notes)
    resolved = replace(planned.resolved, notes=(*planned.resolved.notes, *more))
    predict_run(run, allocation, memory, env, request.root)  # refuses a PLAN_ANCHOR that cannot correct it
    folder = folder_of_request(request, planned.asked.run, run)
    if folder.note and run.checkpoint.use_args and request.model_of is None:
        return prepare(replace(request, model_of=folder.run_dir(run)))
    start_point = find_start_point(run, folder.path)
    if request.kept is None and (kept := kept_of(resolved, start_point)):
        return prepare(replace(request, kept=kept))
    check_fits_task(run, start_point)
    resolved = choose_trackers(keep_schedule(plan_end(resolved, start_point), start_point), env)
    run = resolved.run
    refuse_secrets(run, env)
    resolved = replace(resolved, notes=(*resolved.notes, *host_notes(run, allocation, env, folder.path)))
    settings_now, plan = dictionary_of(run, world_size), LaunchPlan((), {})
    job = Job(request, resolved, allocation, folder, memory, available, settings_now, plan, facts, start_point)
    return replace(job, plan=plan_attempt(job, allocation, 0, 0.0))


def rank_command(python: str, folder: Path) -> list[str]:
    """Return the command of a rank of the run in ``folder``."""
    return [python, "-m", "megads", "worker", "--config", str(folder / CONFIG)]


def rank_additions(run: RunConfig, env: Mapping[str, str], ends: float, lease: str) -> dict[str, str]:
    """Return what ranks get besides what their launcher sets, which need not give them all that is in ``env``.

    That is: variables that the settings need and that the data lists use, a secret of this start, and the end of the
    allocation in unix seconds (``ends``, 0: unknown), and the token of the claim on the folder (``lease``).
    """
    from megads.data.sources.file_list import variables_of
    from megads.data.stages.shards import lists_of

    data = run.data
    paths = (data.path, data.valid_path, data.test_path)
    lists = [Path(path) for path in (data.file_list, data.valid_file_list, data.test_file_list) if path]
    of_stages, lines = lists_of(run)
    names = variables_of(paths, [*lists, *of_stages], lines)
    named = {name: env[name] for name in sorted(names) if name in env}
    end = {ENDS_AT: str(int(ends))} if ends else {}
    needed = {**rank_variables(run, env), **allocator_variables(run, env)}
    return {**named, **needed, TOKEN: secrets.token_hex(16), LEASE: lease, **end}


def plan_attempt(job: Job, allocation: Allocation, attempt: int, ends: float) -> LaunchPlan:
    """Return the plan of a start of ``job``; the end of the allocation is in unix seconds, 0: unknown."""
    request, facts, folder = job.request, job.facts, job.folder.path
    command = rank_command(rank_python(job.run.launch, request.python), folder)
    extra = {**rank_additions(job.run, request.env, ends, job.lease), **request.staged}
    if request.started:
        plan = plan_started(allocation, request.started.by, command, request.env, facts=facts, extra=extra)
    else:
        extra[WATCHED] = "1"
        plan = plan_launch(
            job.run, allocation, command, request.env, facts=facts, attempt=attempt, folder=folder, extra=extra
        )
    return plan.hiding(TOKEN, LEASE)


@contextmanager
def _held(job: Job) -> Iterator[tuple[Job, Path]]:
    with claim_all(job.run, job.folder.path, job.allocation.job_id) as (lease, checkpoints):
        yield replace(job, lease=lease), checkpoints


def start(job: Job, out: IO[str], begin: Callable[[LaunchPlan], int] | None = None) -> int:
    """Run ``job`` to its end and return its exit code.

    Args:
        begin: is called with the plan once the run folder is written and held, instead of launching it.

    Raises:
        MegadsError: the run folder is in use (InUse) or cannot be used, a package is missing, or the data are broken.
    """
    from megads.data.check import check_data
    from megads.data.datasets import uses_demo
    from megads.data.tokenizers.build import uses_demo_tokenizer

    run, folder, env = job.run, job.folder.path, job.request.env
    if job.folder.complete:
        out.write(
            f"{folder} is complete ({plural(run.train.train_iters, 'iteration')}); "
            "a larger TRAIN_ITERS trains longer, another RUN_NAME starts a new run\n"
        )
        return 0
    ends = ends_at(job.allocation, env, run.launch.walltime, started_at(), say=say)
    check_versions(run)
    check_open_files(job.allocation.world_size)
    with _held(job) as (job, checkpoints):
        if uses_demo(run) or uses_demo_tokenizer(run):
            make_demo_with_bar(run, out)
            check_data(run, run.model.vocab_size)
        write_run_files(job)
        ready = staged(job, job.allocation, lambda line: out.write(f"{line}\n"))
        plan = plan_attempt(ready, job.allocation, 0, ends)
        show_opening(job, plan, ends, checkpoints, out)
        attempt = first_attempt(run, job.allocation, folder, job.start_point.iteration if job.start_point else 0)
        if begin is not None:
            begin_row(folder, attempt)
            return begin(plan)
        if not run.launch.max_restarts:
            return run_plan(plan, folder, env, attempt=attempt)
        return _restarts(job, checkpoints, ends).run()


def _restarts(job: Job, checkpoints: Path, ends: float) -> Restarts:
    """Return what starts ``job`` again when ranks fail; the end of the allocation is in unix seconds, 0: unknown."""
    now, saved = steady_clock(), Saved(checkpoints, job.start_point.iteration if job.start_point else 0)

    def plan_next(allocation: Allocation, attempt: int) -> LaunchPlan:
        if saved.is_any():
            resume_from_saved(job.folder.path, job.resolved)
        # By the host's clock of now, which the ranks read; it may have been set since the first start.
        ready = staged(job, allocation, say)  # on a host that took another's place, too
        return plan_attempt(ready, allocation, attempt, ends and ends + time.time() - now())

    return Restarts(
        job.folder.path,
        saved,
        job.request.env,
        job.allocation,
        plan=plan_next,
        shrink=lambda allocation: shrink(job, allocation),
        max_restarts=job.run.launch.max_restarts,
        ends_at=ends,
        probe=probe_of(job.run, job.allocation, job.facts, job.request.env, job.request.python, job.folder.path).check,
        memory=NodeMemory.of(job.run.machine, job.request.env),
        describe=lambda allocation: attempt_of(load_config(job.folder.path / CONFIG), allocation),
    )


def shrink(job: Job, allocation: Allocation) -> str:
    """Rewrite the settings of a run for fewer hosts, with the same global batch; return what changed.

    Raises:
        MegadsError: the layout or the global batch does not fit these hosts.
    """
    was = job.run
    request = replace(job.request, pairs=(*job.request.pairs, f"train.global_batch={was.train.global_batch}"))
    where = replace(hosts_of_this_job(request), allocate=lambda run, facts: allocation)
    planned = plan_run(request, where, finish=settle_engine)
    resolved = choose_trackers(keep_schedule(plan_end(planned.resolved, job.start_point), job.start_point), request.env)
    new = resolved.run
    settings_now, memory = dictionary_of(new, allocation.world_size), estimate(new, allocation.world_size)
    write_run_files(replace(job, resolved=resolved, allocation=allocation, deepspeed=settings_now, memory=memory))
    return (
        f"DP {was.parallel.data} -> {new.parallel.data}, micro-batch {was.train.micro_batch} -> "
        f"{new.train.micro_batch}, accumulation {was.train.grad_acc_steps} -> {new.train.grad_acc_steps}, "
        f"the global batch stays {new.train.global_batch}"
    )
