"""Worker that loads nothing: starts a process, or holds the interpreter's lock for ever."""

import ctypes
import os
import subprocess

from deeppool.processes.managed_process import CommandChannel


def main() -> None:
    commands = CommandChannel()
    while (command := commands.next()["command"]) != "exit":
        pid = subprocess.Popen(["sleep", "600"]).pid if command == "start" else os.getpid()
        commands.answer(
            "done",
            pid=pid,
            environment=os.environ.get("DEEPPOOL_TEST_FOLDER"),
            environment_size=sum(map(len, os.environ.values())),
        )
        if command == "hold":
            # No thread of this process runs any more, not even the one that reads its input.
            ctypes.PyDLL(None).sleep(600)
