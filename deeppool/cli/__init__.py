"""The ``deeppool`` command line.

With ``--json``, a command prints exactly one JSON object to standard output; progress and messages go to
standard error. Exit codes: 0 for success, 1 for an error or interrupt, reported in one line, 2 for bad usage.

A module per command, or per group of commands: advise, calibrate, check, cluster, diff, estimate, explain, import_trace
(cluster import), interference, network, nightly, notebooks (evaluate, lab), plans (plan, frontier), profiles (env,
profile), replan, running, run, scaling, show, simulate, simulate_cluster (cluster simulate), train; and what they
share:

app         the Typer application of these, and what reports its errors
conditions  options of simulations that deviate from the plan
inputs      reads profiles and plans
kept_inputs  results can be written, and replace no file that their command reads
options     options of several commands
output      prints records and progress
out_of_memory  this process has no memory left
internal_errors  an exception that no command expects
interrupts  Ctrl-C, SIGTERM and a closed terminal
sharing     what frontier --background prints
torchrun    a command under torchrun: rank 0 prints, the others serve it
"""

import sys

from deeppool.cli.interrupts import handle_interrupts, ignore_interrupts


def main() -> None:
    """Runs a command; any error, an interrupt, or no disk or memory is reported in one line, with exit code 1.

    The process ignores further signals: it is about to end.
    """
    handle_interrupts()
    try:
        try:
            # Imported here: that takes a tenth of a second, in which a command may be interrupted already.
            from deeppool.cli.app import run_command

            run_command()
        finally:
            # An interrupt of what Python does at its end would be a traceback.
            ignore_interrupts()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(1)
