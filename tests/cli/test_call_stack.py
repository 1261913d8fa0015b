"""A command's calls never cross the end of a block of Python's call stack."""

from __future__ import annotations

import subprocess
import sys

import pytest

from megads.cli.call_stack import with_room

DEEP = """
import resource, sys
from megads.cli.call_stack import with_room
def leaf(a=0, b=0, c=0, d=0, e=0, f=0, g=0, h=0, i=0, j=0, k=0, l=0, m=0, n=0, o=0, p=0): return a
def deep(count):
    if count: return deep(count - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(2000): leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
def most(): return max(deep(count) for count in range(0, 400))
print(with_room(most) if sys.argv[1] == "room" else most())
"""


def test_it_returns_and_raises_what_the_function_does():
    assert with_room(lambda: 5) == 5
    with pytest.raises(KeyError):
        with_room(lambda: {}["x"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are not kept in blocks")
def test_no_depth_of_calls_costs_page_faults():
    def faults(how: str) -> int:
        return int(subprocess.run([sys.executable, "-c", DEEP, how], capture_output=True, text=True, check=True).stdout)

    assert faults("room") < 100
    assert faults("none") > 1000  # Python's own way: a fault for every call at the end of a block
