"""The Typer application with all commands, and what reports its errors."""

import atexit
import errno
import gc
import io
import sys
from typing import Annotated

import typer

from deeppool.cli.advise import advise
from deeppool.cli.calibrate import calibrate
from deeppool.cli.check import check
from deeppool.cli.cluster import cluster
from deeppool.cli.diff import diff
from deeppool.cli.estimate import estimate
from deeppool.cli.explain import explain
from deeppool.cli.import_trace import import_trace
from deeppool.cli.interference import interference
from deeppool.cli.internal_errors import report_internal_error
from deeppool.cli.interrupts import was_interrupted
from deeppool.cli.kept_inputs import InputKeepingCommand
from deeppool.cli.network import network
from deeppool.cli.nightly import nightly
from deeppool.cli.notebooks import evaluate, lab
from deeppool.cli.out_of_memory import OUT_OF_MEMORY, ran_out_of_memory
from deeppool.cli.plans import frontier, plan
from deeppool.cli.profiles import env, profile
from deeppool.cli.replan import replan
from deeppool.cli.run import run
from deeppool.cli.running import running
from deeppool.cli.scaling import scaling
from deeppool.cli.show import show_files
from deeppool.cli.simulate import simulate
from deeppool.cli.simulate_cluster import simulate_cluster
from deeppool.cli.train import train
from deeppool.errors import DeeppoolError, RunError

INTERRUPTED = 130
"""Exit code of typer for an interrupt that a command did not handle."""

GARBAGE_THRESHOLDS = 10_000, 20, 20
"""For :func:`gc.set_threshold`: by Python's own a quarter of the time of importing torch is a search for garbage."""

HELP_NAMES = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings=HELP_NAMES,
    help="See where GPU time is lost when training is strong-scaled, plan a better use of the GPUs, and run that plan "
    "with a background job in the gaps.\n\n"
    "From a model to a live run:\n\n"
    "`deeppool profile vgg16 --input-shape 3,64,64 --batch-sizes 1,2,4,8,16 -o vgg16.json`\n\n"
    "`deeppool plan vgg16.json --gpus 2 --global-batch 16 --amplification-limit 1.5 -o plan.json`\n\n"
    "`deeppool run plan.json --background resnet18 --seconds 30`",
)
GROUPS = {
    "Advice": (advise,),
    "Facts": (env, profile, estimate, calibrate, network, interference),
    "Plans": (plan, explain, check, frontier, scaling, simulate),
    "Runs": (run, train, running, replan),
    "Records": (show_files, diff),
    "Notebooks": (evaluate, nightly, lab),
}
for group, commands in GROUPS.items():
    for command in commands:
        name = command.__name__.removesuffix("_files")
        app.command(name, cls=InputKeepingCommand, rich_help_panel=group)(command)
cluster.command("simulate", cls=InputKeepingCommand)(simulate_cluster)
cluster.command("import", cls=InputKeepingCommand)(import_trace)
app.add_typer(cluster, name="cluster", rich_help_panel="Runs")


def _version(wanted: bool) -> None:
    if wanted:
        from deeppool import __version__

        print(f"deeppool {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Takes the options that stand before a command."""


def run_command() -> None:
    """Runs a command; any error, or no disk or memory, is reported in one line, with exit code 1.

    Raises:
        KeyboardInterrupt: it was interrupted, and the command has no message of its own for that.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without Unicode shows a question mark for an arrow, as for a table's lines.
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            app()
        except Exception as error:
            if isinstance(error, DeeppoolError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
                raise
            if was_interrupted():
                raise KeyboardInterrupt from None
            if ran_out_of_memory(error):
                raise RunError(OUT_OF_MEMORY) from error
            raise RunError(report_internal_error(error)) from error
        finally:
            # None where it is closed (``>&-``).
            if sys.stdout is not None:
                sys.stdout.flush()
    except DeeppoolError as error:
        print("error:", " ".join(str(error).split("\n")), file=sys.stderr)
        sys.exit(1)
    except MemoryError:
        # While another error was reported.
        print("error:", OUT_OF_MEMORY, file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        # Files have errors of their own: what is left is standard output.
        if error.errno != errno.ENOSPC:
            raise
        print(f"error: cannot print the result: {error.strerror} (print it to another disk)", file=sys.stderr)
        # At its end the interpreter flushes again.
        sys.stdout = sys.stderr
        sys.exit(1)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            raise KeyboardInterrupt from None
        raise
    finally:
        gc.set_threshold(*thresholds)
        # What is left is all in use: looking for garbage would take longer than all else that Python does at its end.
        atexit.register(gc.freeze)
