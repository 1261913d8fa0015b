"""Processes below this one."""

import os
import subprocess
from contextlib import suppress

from megads.launch.supervise.processes import Family, children, orphans_adopted


def test_a_family_is_all_below_it():
    others = children(os.getpid())  # what other tests of this process keep
    script = "sleep 60 & sleep 60 & sh -c 'sleep 60 & echo; wait' & wait"
    with orphans_adopted(), subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as starter:
        family = Family(starter, others)
        assert starter.stdout is not None
        starter.stdout.readline()
        found = family.members()
        assert found[0] == starter.pid
        assert len(found) >= 5
        family.kill()
        assert family.members() == []
        for pid in found[1:]:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
