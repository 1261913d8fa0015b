"""Every planted bug of ``tests/mutations.py`` fails a test."""

import pytest

from tests.mutations import MUTATIONS, copy_tree, is_caught


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    copy_tree(folder)
    return folder


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_a_planted_bug_is_caught(mutation, tree):
    caught, _ = is_caught(mutation, tree)
    assert caught


def test_there_are_enough_bugs():
    assert len({mutation.name for mutation in MUTATIONS}) >= 12
