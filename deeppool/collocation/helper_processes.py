"""Helper processes of a run, at most one beside each rank: background jobs and spinners.

One that ends is not the end of the run: it is reported once, in a message, and left out.
"""

import queue
from collections.abc import Collection
from typing import Any, Self

from deeppool.base.cancellation import wait
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import Inbox, Message, ProcessHandle, close_all

START_SECONDS = 300.0
"""Limit for importing torch, and for building and capturing the model, at the lowest priority at worst."""

SWITCH_SECONDS = 300.0
"""Time-out for a job to rest: its step ends first, and at the lowest priority that may wait for a busy core."""

BACKGROUND = "deeppool.collocation.background_process"
"""Module that the process of a background job runs."""


class HelperProcesses:
    """Helper processes by rank. Leaving its ``with`` block ends them."""

    def __init__(self) -> None:
        """Starts none."""
        self._inbox: Inbox = queue.SimpleQueue()
        self._running: dict[int, ProcessHandle] = {}
        self._failures: dict[int, Message] = {}
        """By rank what a process reported that is about to end."""

    def start(self, launcher: Launcher, rank: int, module: str, name: str, **setup: Any) -> ProcessHandle:
        """Starts the process beside a rank, which has none.

        Args:
            launcher: starts it where the rank is.
            rank: the rank.
            module: module that it runs.
            name: name in messages, before "of rank 0".
            setup: further fields of its command ``setup``, or others than those of the rank.
        """
        process = launcher.start(rank, module, f"{name} of rank {rank}", self._inbox)
        self._running[rank] = process
        slot = launcher.worker_spec(rank)
        process.send("setup", **{"core": slot.core, "index": slot.index, "folder": slot.folder, "rank": rank} | setup)
        return process

    def send(self, command: str, ranks: Collection[int] | None = None, **arguments: Any) -> None:
        """Sends a command to the processes beside some ranks; None: all."""
        for rank, process in self._running.items():
            if ranks is None or rank in ranks:
                process.send(command, **arguments)

    def receive(self, timeout: float) -> tuple[int, Message] | None:
        """Returns the next message and its rank; None: there was none for ``timeout`` seconds.

        The message about a process that has ended has the event ``ended``, with ``why``, and whether it ``refused``.

        Raises:
            RunCancelledError: this thread's run was cancelled.
        """
        while True:
            try:
                process, message = wait(self._inbox, timeout)
            except queue.Empty:
                return None
            rank = next((rank for rank, running in self._running.items() if running is process), None)
            if rank is None:
                continue
            if message is None:
                failure = self._failures.get(rank, {"text": process.exit_reason(), "kind": None})
                self.end(rank)
                return rank, {"event": "ended", "why": failure["text"], "refused": failure["kind"] == "refusal"}
            if message["event"] != "failed":
                return rank, message
            self._failures[rank] = message

    def collect(self, event: str, timeout: float) -> dict[int, Message]:
        """Waits for one answer of each process; one that ends, or a silence of all, is answered by ``ended``.

        Other messages are dropped.

        Raises:
            RunCancelledError: this thread's run was cancelled.
        """
        answers: dict[int, Message] = {}
        while missing := self._running.keys() - answers.keys():
            received = self.receive(timeout)
            if received is None:
                for rank in missing:
                    self.end(rank)
                    answers[rank] = {"event": "ended", "why": f"sent nothing for {timeout:.0f} s", "refused": False}
            elif received[1]["event"] in (event, "ended"):
                answers[received[0]] = received[1]
        return answers

    def cpu_seconds(self) -> dict[int, float]:
        """Returns the CPU seconds that each process has used."""
        used = {rank: process.cpu_seconds() for rank, process in self._running.items()}
        return {rank: seconds for rank, seconds in used.items() if seconds is not None}

    def end(self, rank: int) -> None:
        """Kills the process beside a rank, if there is one."""
        self._failures.pop(rank, None)
        if (process := self._running.pop(rank, None)) is not None:
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        close_all(list(self._running.values()), grace=1.0)
