"""What every test gets: a fixed seed, pools of ranks that end with the session, a clean environment."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.cluster.slurm import Slurm, missing, slurm_cluster
from tests.seconds import Seconds, group_of, place_of
from tests.turns import remove_locks, turn

# Before torch is imported: pools of ranks are forked from this process, and a forked
# child of a process with OpenMP threads may hang.
os.environ["OMP_NUM_THREADS"] = "1"

# A job that a script put into the background ignores SIGINT, and so would every process that
# a test starts; the tests of Ctrl-C need it as a terminal leaves it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Under nohup they would ignore SIGHUP. What has a handler here has the default in a program that is started.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# An example may wait for a core: by default one that takes 0.2 s fails.
settings.register_profile("megads", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("megads")

_LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def pytest_configure(config: pytest.Config) -> None:
    """Choose what tests/parity/drawn.py draws, before workers are started, which inherit it; add up seconds there."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Seconds())
    os.environ.setdefault("PARITY_SEED", str(random.SystemRandom().randrange(10**6)))


def pytest_report_header() -> str:
    """Say what it drew."""
    return f"layouts drawn with PARITY_SEED={os.environ['PARITY_SEED']}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """With several workers, hold a test back until it may run; see tests/turns.py."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return (yield)
    with turn("alone" in item.keywords, run):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the locks of the workers, which are gone."""
    run = getattr(getattr(session.config, "workerinput", None), "get", lambda name: None)("testrunuid")
    if run is None and (manager := session.config.pluginmanager.get_plugin("dsession")):
        remove_locks(manager.nodemanager.testrunuid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep a file's tests on one worker, and all files that need the one SLURM.

    xdist's own groups (--dist loadgroup) do nothing with pytest 9.2, silently.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first.

    Skip what needs an MPI that is not installed.

    In CI (MEGADS_REQUIRE_ALL) what is not installed fails instead.
    """
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=lambda item: place_of(item.nodeid))
    missing = [name for name in ("mpirun.openmpi", "mpiexec.hydra") if not shutil.which(name)]
    if missing and not os.environ.get("MEGADS_REQUIRE_ALL"):
        reason = pytest.mark.skip(reason=f"{' and '.join(missing)} not installed (apt-get install openmpi-bin mpich)")
        for item in items:
            if "mpi" in item.keywords:
                item.add_marker(reason)


@pytest.fixture(scope="session", autouse=True)
def _rank_pools() -> Iterator[None]:
    """End the pools that tests started through ``ranks.run_ranks``, and the server that forks commands."""
    yield
    from tests.forks.popen import close_server
    from tests.ranks import close_pools

    close_pools()
    close_server()


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Give a real SLURM of two nodes, shared by all tests of the session; see tests/cluster/slurm.py."""
    why = missing()
    if why and not os.environ.get("MEGADS_REQUIRE_ALL"):
        pytest.skip(why)
    assert not why, why
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """Make every test draw the same numbers, whatever ran before it. Imports no torch."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _no_leaked_ranks() -> Iterator[None]:
    """Fail a test that leaves a launcher's variables in ``os.environ``: later tests would believe them."""
    before = {name: os.environ.get(name) for name in _LAUNCHER_NAMES}
    yield
    changed = [name for name in _LAUNCHER_NAMES if os.environ.get(name) != before[name]]
    for name in changed:
        if before[name] is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before[name]
    assert not changed, f"the test leaves {', '.join(changed)} changed in os.environ; use monkeypatch"


@pytest.fixture(autouse=True)
def _no_leaked_signals() -> Iterator[None]:
    """Fail a test that leaves a signal blocked or ignored: whatever later tests start would inherit that."""
    before = _signals()
    yield
    after = _signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, before[0])
    for number in after[1] - before[1]:
        signal.signal(number, signal.SIG_DFL)
    assert after == before, f"the test leaves signals (blocked, ignored) {after}, not {before}"


def _signals() -> tuple[set[int], set[int]]:
    """Return the signals that this thread blocks and those that the process ignores."""
    every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD)
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, [])), {
        n for n in every if signal.getsignal(n) == signal.SIG_IGN
    }
