"""The ``deeppool running`` command."""

import json
import time
from typing import Annotated

import typer

from deeppool.cli.options import AsJson
from deeppool.errors import InvalidValueError, RunError

STOP_TIMEOUT = 60.0
"""Seconds to wait for a run to end."""
POLL_INTERVAL = 0.1


def running(
    stop: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|all", help="Stop this run, or all of them, and wait until its processes have ended."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List your runs on this machine, started by notebooks, scripts or commands, or stop one.

    Example: `deeppool running --stop 4242-1`
    """
    from deeppool.base import serialization
    from deeppool.base.run_registry import running as find

    found = find()
    if stop is not None:
        chosen = [run for run in found if stop in ("all", run.name)]
        if not chosen and stop != "all":
            there = ", ".join(run.name for run in found) or "none"
            raise InvalidValueError(f"no run '{stop}' is in progress: there is {there} (see deeppool running)")
        for run in chosen:
            run.stop()
        deadline = time.monotonic() + STOP_TIMEOUT
        while any(run.alive for run in chosen):
            if time.monotonic() > deadline:
                raise RunError(f"still running after {STOP_TIMEOUT:.0f} s: {', '.join(r.name for r in chosen)}")
            time.sleep(POLL_INTERVAL)
        found = tuple(chosen)
    if as_json:
        print(json.dumps({"stopped" if stop else "running": [serialization.to_json(run) for run in found]}))
    elif stop is not None:
        print("\n".join(f"stopped {run.name}: {run.what}" for run in found) or "nothing is under way")
    else:
        print("\n".join(map(str, found)) or "nothing is under way")
