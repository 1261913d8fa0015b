"""The options of a job, which ``megads submit`` and ``megads train --submit`` share."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from megads.cli.submit import job_options, refuse_job_options, takes_job_options
from megads.errors import ConfigError


@click.command()
@takes_job_options
def shown(**job):
    """Show the options of a job."""
    click.echo(repr(job_options(job)) if any(job.values()) else refuse_job_options(job))


def test_options_of_a_job_are_split_into_words():
    words = ["--nodes", "2", "--option", "-l a=b -q", "--option", "'c d'", "--env", "X", "--env", "Y=1"]
    done = CliRunner().invoke(shown, words, catch_exceptions=False)
    assert "nodes=2, account='', queue='', chunk='', options=('-l', 'a=b', '-q', 'c d')" in done.output
    assert "variables=('X', 'Y=1'), chain=1" in done.output


@pytest.mark.parametrize(
    ("job", "name"), [({"nodes": 2}, "nodes"), ({"options": ("x",)}, "option"), ({"variables": ("X",)}, "env")]
)
def test_an_option_of_a_job_without_one_is_refused(job, name):
    with pytest.raises(ConfigError, match=f"--{name} is an option of a job; pass --submit too"):
        refuse_job_options(job)
    refuse_job_options(dict.fromkeys(job))
