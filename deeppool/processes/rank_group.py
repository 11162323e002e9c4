"""Ranks: child processes that meet in torch.distributed, so that one which dies or hangs ends all."""

import contextlib
import math
import queue
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from deeppool.base.cancellation import wait
from deeppool.device import control_group
from deeppool.errors import RankFailedError
from deeppool.processes.failure_attribution import failure_error, processes_without_memory, root_cause
from deeppool.processes.hang_detector import HangDetector, RankStatus
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import Inbox, Message, ProcessHandle, close_all

TICK = 1.0
"""Seconds between two looks at what the ranks do."""
CULPRIT_SECONDS = 2.0
"""Where the first ranks to end lost a connection: how long to wait for the one that they lost."""
KEEPER = """read -r _
for _ in 1 2 3 4 5; do
  left=
  rm -rf -- "$0" || left=some
  for group in "$1"-*; do
    [ ! -d "$group" ] || rmdir -- "$group" || left=some
  done
  [ "$left" ] || exit
  sleep 1
done
"""
"""A shell's: waits for the end of its parent, then removes a folder, and control groups by the start of their names."""


class RankGroup:
    """The launcher's end. Leaving its ``with`` block ends every process, whatever happened."""

    def __init__(self, launcher: Launcher) -> None:
        """Starts with no rank; ``launcher`` starts them."""
        self._launcher = launcher
        self._inbox: Inbox = queue.SimpleQueue()
        self._ranks: list[ProcessHandle] = []
        self._vigil = HangDetector()
        self._without_memory = processes_without_memory()

    def start(self, module: str) -> ProcessHandle:
        """Starts the next rank as ``python -m module``."""
        rank = len(self._ranks)
        process = self._launcher.start(rank, module, f"rank {rank}", self._inbox)
        self._ranks.append(process)
        self._vigil.ranks[process.name] = RankStatus(process.name)
        return process

    def send(self, command: str, **arguments: Any) -> None:
        """Gives every rank the same command."""
        for child in self._ranks:
            child.send(command, **arguments)

    def collect(
        self,
        event: str,
        timeout: float | Callable[[], float],
        when: str,
        on_message: Callable[[Message], None] | None = None,
        *,
        rendezvous_timeout: float = math.inf,
    ) -> list[Message]:
        """One answer of each rank, in the order of ranks.

        Args:
            event: of the answers.
            timeout: seconds in which no rank may get on; asked again whenever it is a function.
            when: what the ranks do meanwhile, for the error.
            on_message: is given what else they say, but for signs of life.
            rendezvous_timeout: the timeout with ranks that all wait for one another, where it is shorter.

        Raises:
            RankFailedError: a rank died, or all stood still for too long; all are ended by then.
            RunCancelledError: this thread's run was cancelled.
        """
        answers: dict[ProcessHandle, Message] = {}
        self._vigil.progress = self._vigil.clock
        while len(answers) < len(self._ranks):
            heard = self._hear(TICK, when)
            if heard is not None:
                child, message = heard
                if message["event"] == event:
                    answers[child] = message
                elif on_message is not None:
                    on_message(message)
            allowed = timeout() if callable(timeout) else timeout
            finished = {child.name for child in answers}
            hung = self._vigil.hung(allowed, min(rendezvous_timeout, allowed), finished, when)
            if hung is not None and self._inbox.empty():
                self.close(grace=0)
                raise RankFailedError(hung)
        return [answers[child] for child in self._ranks]

    def watch(self, seconds: float, when: str) -> None:
        """Waits; a rank that dies meanwhile is noticed at once.

        Raises:
            RankFailedError: one did; all are ended by then.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._hear(min(left, TICK), when)

    def _hear(self, seconds: float, when: str) -> tuple[ProcessHandle, Message] | None:
        """What a rank says beside its signs of life; None if none does within some seconds."""
        before, heard = time.monotonic(), None
        with contextlib.suppress(queue.Empty):
            heard = wait(self._inbox, seconds)
        # If this process was stopped for a while, no rank has been silent for that long.
        self._vigil.clock += min(time.monotonic() - before, 2 * TICK)
        if heard is None:
            return None
        child, message = heard
        if message is None or message["event"] == "failed":
            self._fail(child, message, when)
        self._vigil.hear(child.name, message)
        return None if message["event"] == "pulse" else (child, message)

    def _fail(self, child: ProcessHandle, message: Message | None, when: str) -> NoReturn:
        """Ends all ranks and blames the one that did not fall with another."""
        ranks = list(self._vigil.ranks.values())
        ended: set[str] = set()
        deadline = time.monotonic() + CULPRIT_SECONDS
        while True:
            if message is None:
                ended.add(child.name)
            else:
                self._vigil.hear(child.name, message)
            late = time.monotonic() > deadline or len(ended) == len(self._ranks)
            # Of an end we hear after all that the rank told; its exit code may be known before.
            known = {process.name for process in self._ranks if late or process.name in ended}
            codes = {process.name: process.exit_code() if process.name in known else None for process in self._ranks}
            first = root_cause(ranks, codes)
            # A killed rank breaks its peers' connections, and theirs may be the first end that is noticed.
            sure = first is not None and (first.failure is not None or (codes[first.name] or 0) < 0)
            if sure or late:
                break
            with contextlib.suppress(queue.Empty):
                child, message = self._inbox.get(timeout=0.05)
        fate = next((process.exit_reason() for process in self._ranks if first and process.name == first.name), "")
        self.close(grace=0)
        raise failure_error(ranks, first, fate, when, processes_without_memory() - self._without_memory)

    def close(self, grace: float = 2.0) -> None:
        """Ends every rank."""
        if grace == 0:
            for child in self._ranks:
                child.kill()
        close_all(self._ranks, grace)

    def __enter__(self) -> "RankGroup":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(grace=2.0 if kind is None else 0)


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A temporary folder that only this user can enter (mode 0700); control groups with its name go with it."""
    folder = Path(tempfile.gettempdir()) / f"deeppool-{secrets.token_hex(4)}"
    groups = control_group.home()
    # All goes with this process even if that is killed: the shell reads the end of its input then.
    with subprocess.Popen(
        ["/bin/sh", "-c", KEEPER, str(folder), str((groups or folder.parent) / folder.name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    ):
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            control_group.remove(groups, folder.name)
            shutil.rmtree(folder, ignore_errors=True)
