"""The ``megads`` command. Each subcommand parses, calls one function, and prints.

Subcommands are imported when they are used: ``megads --help`` needs neither pydantic nor torch.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from megads import __version__
from megads.cli.group import refuse_unknown_command
from megads.errors import MegadsError

COMMANDS = {
    "train": ("megads.cli.train", "Resolve the settings, check them, and train."),
    "config": ("megads.cli.config", "Show every setting: value, unit, origin, help."),
    "optimizers": ("megads.cli.optimizers", "List the optimizers: rule, library, devices, needs, settings."),
    "doctor": ("megads.cli.doctor", "Check hosts, versions, devices, network and disks; or a layout's gradients."),
    "data": ("megads.cli.data", "Token files: preprocess, merge, info, check, index, train-tokenizer."),
    "checkpoint": ("megads.cli.checkpoint", "Checkpoints: list, verify, inspect, reshape, import and export."),
    "launch": ("megads.cli.launch", "Start any program as ranks on the hosts of a job."),
    "submit": ("megads.cli.submit", "Submit a script as a PBS or SLURM job of this machine."),
    "plot": ("megads.cli.plot", "Draw runs: a PNG, a page, in the terminal; or a schedule."),
    "runs": ("megads.cli.runs", "List runs: state, step, loss, speed."),
    "watch": ("megads.cli.watch", "Follow a run while it runs."),
    "stop": ("megads.cli.stop", "Ask a run to save and stop at the next step."),
    "health": ("megads.cli.health", "One rank of doctor; launchers call this."),
    "worker": ("megads.cli.worker", "One rank of a prepared run: mpiexec -n 8 megads worker RUN."),
}
HIDDEN = {"health"}


class _Group(click.Group):
    """Loads commands late; prints a MegadsError as one line. Anything else keeps its traceback."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        refuse_unknown_command(ctx, args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else ctx.command_path
            message = error.format_message().rstrip(".")
            raise MegadsError(f"{message}; `{path} --help` lists what there is") from None

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        _open_closed_streams()
        try:
            return super().main(args, **{**extra, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
        except click.UsageError as error:
            _report(f"{error.format_message().rstrip('.')}; `megads --help` lists what there is")
        except click.Abort:
            click.echo("megads: interrupted", err=True)
            sys.exit(130)
        except MegadsError as error:
            from megads.text.secrets import hidden

            _report(hidden(str(error), os.environ))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            click.echo(f"megads: {error.filename or 'output'}: {error.strerror}; free some space", err=True)
        sys.exit(2)


def _report(text: str) -> None:
    """Say what is wrong; of several ranks with the same command line rank 0 does."""
    from megads.launch.user_ranks.entry import is_silent

    if not is_silent(os.environ):
        click.echo(f"megads: {text}", err=True)


def _open_closed_streams() -> None:
    """Give the null device to what the caller closed (``>&-``), so that no file gets the number of a stream."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="megads")
@click.option(
    "--local_rank", "--local-rank", hidden=True, help="Local rank of this process, as DeepSpeed's launcher passes it."
)
def main(local_rank: str | None) -> None:
    """Pretrain language models on HPC clusters.

    Every setting can be given in the environment: TP=2 NLAYERS=10 megads train --preset 7B
    """
