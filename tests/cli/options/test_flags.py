import click
import pytest
from click.testing import CliRunner

from megads.cli.options.request import FlagCommand


@click.command(cls=FlagCommand)
@click.option("--preset")
def shown(preset, flags):
    click.echo(repr((preset, *flags)))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--data-path", "0.3", "a", "0.7", "b"], (None, ("--data-path", "0.3 a 0.7 b"))),
        (["--data-path", "a", "--preset", "7B"], ("7B", ("--data-path", "a"))),
        (
            ["--rampup-batch-size", "16", "16", "5_859_375", "--eod-mask-loss"],
            (None, ("--rampup-batch-size", "16 16 5_859_375"), ("--eod-mask-loss", "")),
        ),
        (["--rampup-batch-size", "16 16 100"], (None, ("--rampup-batch-size", "16 16 100"))),
        (["--skip-train-iteration-range=1-2"], (None, ("--skip-train-iteration-range", "1-2"))),
    ],
)
def test_an_option_takes_the_words_that_follow_it(words, expected):
    done = CliRunner().invoke(shown, words, catch_exceptions=False)
    assert done.output == repr(expected) + "\n"


def test_an_option_of_one_word_takes_one():
    done = CliRunner().invoke(shown, ["--split", "98,2,0", "more"])
    assert isinstance(done.exception, SystemExit)
    assert "unexpected extra argument" in done.output
