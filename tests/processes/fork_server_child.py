"""Worker for tests of the fork server: describes itself, fails, or starts a process."""

import atexit
import gc
import importlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path

import psutil
import torch  # noqa: F401  as every real child does

from deeppool.processes import before_forks
from deeppool.processes.managed_process import CommandChannel

SECONDS = 300.0
PREPARED: list[tuple[int, int]] = []
"""Process in which what this module registers was called, and how many threads it had."""

before_forks.register(lambda: PREPARED.append((os.getpid(), threading.active_count())))
# The server has chosen its folder for temporary files before it forks.
before_forks.register(tempfile.gettempdir)


def main() -> None:
    commands = CommandChannel()
    atexit.register(mark, "exit-handler-ran")
    while (command := commands.next()["command"]) != "exit":
        if command == "describe":
            commands.answer("description", **describe())
        elif command == "start":
            commands.answer("started", pid=subprocess.Popen(["sleep", "600"]).pid)
        else:
            print("the last words", file=sys.stderr)
            sys.exit(3)


def mark(name: str) -> None:
    folder = Path(os.environ.get("DEEPPOOL_TEST_FOLDER", "nowhere"))
    if folder.is_dir():
        (folder / name).touch()


# What the server loads is finalized, when Python exits, by the server alone.
weakref.finalize(before_forks, mark, "finalized")


def describe() -> dict[str, object]:
    import numpy as np

    try:
        only_here = importlib.import_module("only_here").ANSWER
    except ImportError:
        only_here = None
    return {
        "pid": os.getpid(),
        "group": os.getpgrp(),
        "title": " ".join(psutil.Process().cmdline()),
        "cwd": str(Path.cwd()),
        "only_here": only_here,
        "environment": os.environ["DEEPPOOL_TEST_FOLDER"],
        "drawn": [random.random(), float(np.random.random())],
        "parent": os.getppid(),
        "cpu": sum(os.times()[:2]),
        "open": len(list(Path("/proc/self/fd").iterdir())),
        "collects": gc.isenabled(),
        "prepared": PREPARED,
        "temporary": tempfile.gettempdir(),
        "main": sys.modules["__main__"].__spec__.name,
        "terminates": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    }


if __name__ == "__main__":
    main()
