"""The program `ncp`.

Errors are one line on standard error; exit codes mean something:

    0  done                          5  `ncp check` found a failed check
    2  wrong usage                   70 a bug in ncp
    3  the data or model cannot      130 interrupted
       be used
    4  some of several files could
       not be used, the others were
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ncp.cli.check import check, mnist
from ncp.cli.cluster import cluster, report
from ncp.cli.common import BAD_INPUT
from ncp.cli.models import models
from ncp.cli.train import plot_training, train
from ncp.output.terminal import say

__all__ = ["app", "commands"]

BUG, INTERRUPTED = 70, 130

commands = typer.Typer(
    name="ncp",
    help="Bayesian clustering: posterior samples over partitions from a trained network.\n\n"
    "  [bold]ncp cluster data.csv[/bold]       cluster a table and write a report\n\n"
    "  [bold]ncp cluster 'days/*.csv'[/bold]   the same for many files at once\n\n"
    "  [bold]ncp report result.npz[/bold]      the report of a saved result\n\n"
    "  [bold]ncp models[/bold]                 what models there are, and how good\n\n"
    "  [bold]ncp check gaussian-2d[/bold]      measure a model against the truth\n\n"
    "  [bold]ncp train my.toml[/bold]          train a model of your own",
    epilog="Exit codes: 0 done, 2 wrong usage, 3 the data cannot be used, 4 some files could not "
    "be used, 5 a check failed, 70 a bug, 130 interrupted. [bold]ncp --install-completion[/bold] "
    "teaches your shell to complete commands.",
    rich_markup_mode="rich",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_commands = typer.Typer(help="Fetch data sets.", no_args_is_help=True)
commands.add_typer(data_commands, name="data")
for command in (cluster, report, models, train, plot_training, check):
    commands.command()(command)
commands.command("explain", hidden=True)(report)  # of the labels, as people say it
data_commands.command()(mnist)


def app(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Errors are one line, never a traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments or os.environ.get("NCP_DEBUG") == "1"
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        result = commands(args=arguments, prog_name="ncp", standalone_mode=False)
        sys.stdout.flush()  # what cannot be written is found out here
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _explain(error, debug)


def _explain(error: Exception, debug: bool) -> int:
    if hasattr(error, "format_message"):  # wrong usage, of whichever click typer uses
        return _explain_usage(error)
    if debug:
        raise error
    if isinstance(error, ValueError | FileNotFoundError | PermissionError | IsADirectoryError):
        say(str(error))
        return BAD_INPUT
    if isinstance(error, MemoryError):
        say("out of memory; use fewer --samples or a smaller --max-points")
        return BAD_INPUT
    if isinstance(error, OSError):
        say(f"{error.strerror or error}: {error.filename or ''}")
        return BAD_INPUT
    say(
        f"unexpected {type(error).__name__}: {error} (this is a bug; please report it with the "
        "output of the same command and --debug)"
    )
    return BUG


def _explain_usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if not message or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    where = context.command_path if context is not None else "ncp"
    say(f"{message} (see {where} --help)")
    return 2


def _version(wanted: bool) -> bool:
    if wanted:
        from ncp import __version__

        print(f"ncp {__version__}")
        raise typer.Exit
    return wanted


@commands.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Options of all commands."""
