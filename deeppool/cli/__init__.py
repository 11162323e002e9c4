"""The ``deeppool`` command line.

With ``--json``, a command prints exactly one JSON object to standard output; progress and messages go to
standard error. Exit codes: 0 for success, 1 for an error or interrupt, reported in one line, 2 for bad usage.

A module per command, or per group of commands: check, cluster, diff, estimate, explain, interference, network,
nightly, notebooks (evaluate, lab), plans (plan, frontier), profiles (env, profile), replan, running, run, scaling,
simulate, train; and what they share:

inputs      reads profiles and plans
options     options of several commands
output      prints records and progress
interrupts  Ctrl-C, SIGTERM and a closed terminal
sharing     what frontier --background takes and prints
torchrun    a command under torchrun: rank 0 prints, the others serve it
"""

import atexit
import errno
import sys

import typer

from deeppool.cli.check import check
from deeppool.cli.cluster import cluster
from deeppool.cli.diff import diff
from deeppool.cli.estimate import estimate
from deeppool.cli.explain import explain
from deeppool.cli.interference import interference
from deeppool.cli.interrupts import handle_interrupts, ignore_interrupts
from deeppool.cli.network import network
from deeppool.cli.nightly import nightly
from deeppool.cli.notebooks import evaluate, lab
from deeppool.cli.plans import frontier, plan
from deeppool.cli.profiles import env, profile
from deeppool.cli.replan import replan
from deeppool.cli.run import run
from deeppool.cli.running import running
from deeppool.cli.scaling import scaling
from deeppool.cli.simulate import simulate
from deeppool.cli.train import train
from deeppool.errors import DeeppoolError

INTERRUPTED = 130
"""Exit code of typer for an interrupt that a command did not handle."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="See where GPU time is lost when training is strong-scaled, plan a better use of the GPUs, and run that plan "
    "with a background job in the gaps.\n\n"
    "From a model to a live run:\n\n"
    "`deeppool profile vgg16 --input-shape 3,64,64 --batch-sizes 1,2,4,8,16 -o vgg16.json`\n\n"
    "`deeppool plan vgg16.json --gpus 2 --global-batch 16 --amplification-limit 1.5 -o plan.json`\n\n"
    "`deeppool run plan.json --background resnet18 --seconds 30`",
)
for command in (
    env,
    profile,
    estimate,
    network,
    interference,
    plan,
    explain,
    check,
    diff,
    frontier,
    scaling,
    simulate,
    run,
    train,
    running,
    replan,
    evaluate,
    nightly,
    lab,
):
    app.command()(command)
app.add_typer(cluster, name="cluster")


def main() -> None:
    """Runs a command; a DeeppoolError, a full disk or an interrupt is reported in one line, with exit code 1."""
    handle_interrupts()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except DeeppoolError as error:
        print("error:", " ".join(str(error).split("\n")), file=sys.stderr)
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
        if ended.code != INTERRUPTED:
            raise
        print("error: interrupted", file=sys.stderr)
        sys.exit(1)
    finally:
        # Registered last, so it runs first at exit: an interrupt during the remaining clean-up would be a traceback.
        atexit.register(ignore_interrupts)
