"""The ``megads`` command. Each subcommand parses, calls one function, and prints.

Subcommands are imported when they are used: ``megads --help`` needs neither pydantic nor torch.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from megads.cli.call_stack import with_room
from megads.cli.messages import CURES, shortened
from megads.cli.options.request import ignores_local_rank
from megads.cli.version import version_option
from megads.errors import MegadsError

COMMANDS = {
    "train": ("megads.cli.train", "Resolve the settings, check them, and train."),
    "finetune": ("megads.cli.finetune", "Finetune a pretrained model on chats or labelled examples."),
    "config": ("megads.cli.config", "Show every setting: value, unit, origin, help."),
    "nodes": ("megads.cli.nodes", "List hosts that are known for failures, or forget one that was repaired."),
    "optimizers": ("megads.cli.optimizers", "List the optimizers: rule, library, devices, needs, settings."),
    "doctor": ("megads.cli.doctor", "Check hosts, versions, devices, network and disks; or a layout's gradients."),
    "plan": ("megads.cli.plan", "Plan a run without the machine: layouts, memory, time, cost."),
    "bench": ("megads.cli.bench", "Measure devices: right numbers first, then rates, tokens/s, MFU."),
    "data": ("megads.cli.data", "Token files: preprocess, merge, info, check, index, train-tokenizer."),
    "corpus": ("megads.cli.corpus", "Raw text to a clean corpus: cleaning, near-duplicates, shuffle, statistics."),
    "retro": ("megads.cli.retro", "Retro: chunk database, index and neighbours of a run's samples."),
    "checkpoint": ("megads.cli.checkpoint", "Checkpoints: list, verify, inspect, reshape, import and export."),
    "evaluate": ("megads.cli.evaluate", "Perplexity and accuracy of a trained model on texts."),
    "generate": ("megads.cli.generate", "Continue texts with a trained model."),
    "detoxify": ("megads.cli.detoxify", "Detoxify a model with its own texts, in five steps."),
    "serve": ("megads.cli.serve", "Serve a trained model: OpenAI's API, Megatron-LM's PUT /api, a page."),
    "client": ("megads.cli.client", "Ask a server for texts, from the terminal."),
    "stage": ("megads.cli.stage", "Copy the Python environment to every host's own disk."),
    "container": ("megads.cli.container", "Check, inside a container, what ranks find there."),
    "ensemble": ("megads.cli.ensemble", "Train several runs in one allocation; one fails, others continue."),
    "launch": ("megads.cli.launch", "Start any program as ranks on the hosts of a job."),
    "submit": ("megads.cli.submit", "Submit a script as a PBS or SLURM job of this machine."),
    "plot": ("megads.cli.plot", "Draw runs: a PNG, a page, in the terminal; or a schedule."),
    "branch": ("megads.cli.branch", "Train a branch of a run: from one of its checkpoints, in a folder of its own."),
    "runs": ("megads.cli.runs", "List runs: state, step, loss, speed."),
    "report": ("megads.cli.report", "Report runs: jobs, where their time went, losses, events, cost."),
    "watch": ("megads.cli.watch", "Follow a run while it runs."),
    "replay": ("megads.cli.replay", "Compute a step with NaN or Inf again, on one rank."),
    "stop": ("megads.cli.runs", "Ask a run to save and stop at the next step."),
    "health": ("megads.cli.doctor", "One rank of doctor; launchers call this."),
    "worker": ("megads.cli.worker", "One rank of a prepared run: mpiexec -n 8 megads worker RUN."),
}
HIDDEN = {"health"}


class CommandGroup(click.Group):
    """Loads its commands late, and prints a MegadsError as one line. Anything else keeps its traceback.

    Args:
        late: name of a command -> its module and one line of help.
        suffix: what the name of its function ends with, behind the command's own.
    """

    def __init__(self, *args: Any, late: Mapping[str, tuple[str, str]], suffix: str = "", **more: Any):
        super().__init__(*args, **more)
        self.late, self.suffix = late, suffix

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of ``args``, or say which one a misspelt word may mean."""
        if args[0] not in self.late and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], list(self.late), n=1, cutoff=0.6)
            hint = f"did you mean {close[0]}?" if close else f"`{ctx.command_path} --help` lists what there is"
            raise MegadsError(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return [name for name in self.late if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.late:
            return None
        module = importlib.import_module(self.late[cmd_name][0])
        command: click.Command = getattr(module, cmd_name.replace("-", "_") + self.suffix)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.late[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a wrong option names the help that lists the right ones."""
        try:
            return super().invoke(ctx)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else ctx.command_path
            message = error.format_message().rstrip(".")
            raise MegadsError(f"{message}; `{path} --help` lists what there is") from None

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run the command line, and exit with 2 for what the user can correct."""
        _open_closed_streams()
        try:
            return with_room(partial(super().main, args, **{**extra, "standalone_mode": False}))
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
            if not (text := _with_cure(error)):
                raise
            click.echo(f"megads: {shortened(text)}", err=True)
        sys.exit(2)


def _with_cure(error: OSError) -> str:
    """Return what happened and what to do, for what the user can mend; else an empty text."""
    if error.errno in CURES:
        return f"{error.filename or 'output'}: {error.strerror}; {CURES[error.errno]}"
    if isinstance(error, FileNotFoundError) and error.filename is None:  # as of os.getcwd
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the working folder no longer exists; call megads in one that does"
    return ""


def _report(text: str) -> None:
    """Say what is wrong; of several ranks with the same command line rank 0 does."""
    from megads.launch.user_ranks.entry import is_silent

    if not is_silent(os.environ):
        click.echo(f"megads: {shortened(text)}", err=True)


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


@click.group(cls=CommandGroup, late=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@version_option
@ignores_local_rank
def main() -> None:
    """Pretrain language models on HPC clusters.

    Every setting can be given in the environment: TP=2 NLAYERS=10 megads train --preset 7B
    """
