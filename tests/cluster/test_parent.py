"""A helper process ends with the one that started it."""

from __future__ import annotations

import os

import pytest

from megads.cluster.parent import end_with


@pytest.mark.parametrize(("is_there", "code"), [(True, 7), (False, 0)])
def test_a_helper_whose_parent_is_gone_ends_at_once(is_there, code):
    parent = os.getpid()
    helper = os.fork()
    if not helper:
        end_with(parent if is_there else parent + 1)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) == code
