"""``megads doctor``: options that cannot be meant."""

import pytest
from click.testing import CliRunner

from megads.cli import main


def test_options_that_exclude_each_other_are_refused():
    done = CliRunner().invoke(main, ["doctor", "--gradients", "--json"], env={"MACHINE": "cpu"})
    assert done.exit_code == 2
    assert "--json and --gradients exclude each other" in done.stderr


@pytest.mark.parametrize("limit", ["nan", "inf", "0"])
def test_a_limit_that_is_no_time_is_refused(limit):
    done = CliRunner().invoke(main, ["doctor", "--timeout", limit])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{limit} is not from 1 to 86400 seconds" in done.stderr
