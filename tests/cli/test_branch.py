from __future__ import annotations

from pathlib import Path

from megads.cli.branch import _words


def test_the_line_that_resumes_a_branch_is_one_of_train():
    words = ("branch", "runs/a", "--at", "3", "--name=b", "--copy", "--set", "optim.lr=1", "--clip-grad", "1.0")
    assert _words(words, Path("runs/a")) == ("train", "--set", "optim.lr=1", "--clip-grad", "1.0")
    assert _words(("branch", "--name", "--at", "--at=3", "runs/a/"), Path("runs/a")) == ("train",)
