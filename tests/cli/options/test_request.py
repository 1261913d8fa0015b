"""From a command line and the environment to a request."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from megads.cli.options.request import absolute, request_of, settings_command, show_notes


@settings_command
@click.option("--more", is_flag=True)
def shown(request, more):
    """Show what is asked."""
    found = request()
    click.echo(repr((found.preset, found.pairs, found.flags, found.env["TP"], more)))


def test_a_command_that_takes_settings_gets_its_request():
    words = ["--preset", "7B", "--set", "a.b=1", "--set", "c.d=2", "--more", "--micro-batch-size", "4"]
    done = CliRunner().invoke(shown, words, env={"TP": "2"}, catch_exceptions=False)
    assert done.output == "('7B', ('a.b=1', 'c.d=2'), (('--micro-batch-size', '4'),), '2', True)\n"


def test_the_options_of_settings_come_first_in_the_help():
    text = CliRunner().invoke(shown, ["--help"]).output
    assert text.index("--preset NAME") < text.index("--set SECTION.KEY=VALUE") < text.index("--more")


@pytest.mark.parametrize("rank", [["--local_rank=3"], ["--local-rank", "3"]])
def test_the_local_rank_of_a_launcher_is_no_word_of_the_command(monkeypatch, rank):
    monkeypatch.setattr(sys, "argv", ["megads", "train", *rank, "--preset", "7B"])
    assert request_of("7B", ()).words == ("train", "--preset", "7B")


def test_a_path_has_a_name_and_a_home(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert (absolute("."), absolute("~/x")) == (tmp_path, Path("/home/me/x"))


def test_a_note_hides_what_is_secret(monkeypatch, capsys):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    show_notes(["", "the key is 0123456789abcdef"])
    assert capsys.readouterr().err == "megads: the key is ***\n"
