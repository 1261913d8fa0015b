"""Every planted bug fails a test."""

import pytest

from tests.mutations import MUTATIONS, copy_tree, is_caught, runner
from tests.planted_bugs import NO_BUG


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    copy_tree(folder)
    return folder


@pytest.fixture(scope="module")
def pytests():
    with runner() as process:
        yield process


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_a_planted_bug_is_caught(mutation, tree, pytests):
    caught, _ = is_caught(mutation, tree, pytests)
    assert caught


@pytest.mark.slow
@pytest.mark.dist
def test_without_a_bug_nothing_is_caught(tree, pytests):
    assert NO_BUG.tests in {each.tests for each in MUTATIONS if each.file == NO_BUG.file}
    assert is_caught(NO_BUG, tree, pytests) == (False, "")


def test_there_are_enough_bugs():
    assert len({mutation.name for mutation in MUTATIONS}) >= 12
