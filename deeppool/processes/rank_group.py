"""Rank group: the processes of a run, joined by torch.distributed; if one fails or hangs, all are ended."""

import contextlib
import math
import queue
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from deeppool.base.cancellation import wait
from deeppool.device import control_group
from deeppool.job import Progress
from deeppool.processes.cleanup_watchdog import cleanup_watchdog
from deeppool.processes.failure_attribution import failure_error, out_of_memory_kills, root_cause
from deeppool.processes.hang_detector import HangDetector, RankStatus
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import Inbox, Message, ProcessHandle, close_all
from deeppool.processes.shared_page import SHARED_MEMORY

TICK = 1.0
"""Seconds between two checks for hung ranks."""
ATTRIBUTION_SECONDS = 2.0
"""Seconds to wait for the rank that failed first, if the first ranks to end lost their connection to it."""


class RankGroup:
    """Starts, commands and watches the ranks of a run. Leaving its ``with`` block ends every process."""

    def __init__(self, launcher: Launcher) -> None:
        """Creates the group without ranks; ``launcher`` starts them."""
        self._launcher = launcher
        self._inbox: Inbox = queue.SimpleQueue()
        self._ranks: list[ProcessHandle] = []
        self._hang_detector = HangDetector()
        self._memory_kills = out_of_memory_kills()

    def start(self, module: str) -> ProcessHandle:
        """Starts the next rank as ``python -m module``."""
        rank = len(self._ranks)
        process = self._launcher.start(rank, module, f"rank {rank}", self._inbox)
        self._ranks.append(process)
        self._hang_detector.ranks[process.name] = RankStatus(process.name)
        return process

    def send(self, command: str, **arguments: Any) -> None:
        """Sends the same command to every rank."""
        for process in self._ranks:
            process.send(command, **arguments)

    def collect(
        self,
        event: str,
        timeout: float | Callable[[], float],
        when: str,
        on_message: Callable[[Message], None] | None = None,
        *,
        rendezvous_timeout: float = math.inf,
        on_wait: Callable[[str], None] | None = None,
    ) -> list[Message]:
        """Waits for one answer of each rank; returns them in the order of ranks.

        Args:
            event: name of the answers.
            timeout: seconds without progress of any rank; a function is called again at each check.
            when: what the ranks do meanwhile, for the error.
            on_message: called with every other message except heartbeats.
            rendezvous_timeout: timeout while all ranks wait for one another, if it is shorter.
            on_wait: called whenever it changes which ranks have not answered, or what they do, with both as text.

        Raises:
            RankFailedError: a rank failed, or none made progress in time; all are ended.
            RunCancelledError: this thread's run was cancelled.
        """
        answers: dict[ProcessHandle, Message] = {}
        self._hang_detector.progress = self._hang_detector.clock
        waited_for = ""
        while len(answers) < len(self._ranks):
            received = self._receive(TICK, when)
            if received is not None:
                process, message = received
                if message["event"] == event:
                    answers[process] = message
                elif on_message is not None:
                    on_message(message)
            allowed = timeout() if callable(timeout) else timeout
            finished = {process.name for process in answers}
            missing = self._hang_detector.describe_missing(finished)
            if on_wait is not None and missing not in ("", waited_for):
                waited_for = missing
                on_wait(missing)
            hung = self._hang_detector.hung(allowed, min(rendezvous_timeout, allowed), finished, when)
            if hung is not None and self._inbox.empty():
                self.close(grace=0)
                raise hung
        return [answers[process] for process in self._ranks]

    def watch(self, seconds: float, when: str) -> None:
        """Waits, and fails as soon as a rank fails.

        Raises:
            RankFailedError: a rank failed; all are ended.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._receive(min(left, TICK), when)

    def _receive(self, seconds: float, when: str) -> tuple[ProcessHandle, Message] | None:
        """Returns the next message of a rank except heartbeats, or None if none comes in time."""
        before, received = time.monotonic(), None
        with contextlib.suppress(queue.Empty):
            received = wait(self._inbox, seconds)
        # If this process was stopped for a while, that time does not count as silence of the ranks.
        self._hang_detector.clock += min(time.monotonic() - before, 2 * TICK)
        if received is None:
            return None
        process, message = received
        if message is None or message["event"] == "failed":
            self._fail(process, message, when)
        self._hang_detector.record(process.name, message)
        return None if message["event"] == "heartbeat" else (process, message)

    def _fail(self, process: ProcessHandle, message: Message | None, when: str) -> NoReturn:
        """Ends all ranks and raises the error of the one that failed first."""
        ranks = list(self._hang_detector.ranks.values())
        ended: set[str] = set()
        deadline = time.monotonic() + ATTRIBUTION_SECONDS
        while True:
            if message is None:
                ended.add(process.name)
            else:
                self._hang_detector.record(process.name, message)
            late = time.monotonic() > deadline or len(ended) == len(self._ranks)
            # The end of a rank is reported after its last message; its exit code may be known before.
            known = {process.name for process in self._ranks if late or process.name in ended}
            codes = {process.name: process.exit_code() if process.name in known else None for process in self._ranks}
            first = root_cause(ranks, codes)
            # A killed rank breaks its peers' connections, and their ends may be noticed first.
            certain = first is not None and (first.failure is not None or (codes[first.name] or 0) < 0)
            if certain or late:
                break
            with contextlib.suppress(queue.Empty):
                process, message = self._inbox.get(timeout=0.05)
        reason = next((process.exit_reason() for process in self._ranks if first and process.name == first.name), "")
        self.close(grace=0)
        raise failure_error(ranks, first, reason, when, out_of_memory_kills() - self._memory_kills)

    def close(self, grace: float = 2.0) -> None:
        """Ends every rank."""
        if grace == 0:
            for process in self._ranks:
                process.kill()
        close_all(self._ranks, grace)

    def __enter__(self) -> "RankGroup":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(grace=2.0 if kind is None else 0)


def report_start(report: Progress, done: float = 0.0) -> Callable[[str], None]:
    """Returns a callback for :meth:`RankGroup.collect` that reports for which ranks a start still waits.

    Args:
        report: see :data:`deeppool.job.Progress`.
        done: completed fraction meanwhile.
    """
    return lambda missing: report(f"starting: waiting for {missing}", done)


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Creates a temporary folder with mode 0700, and removes it together with control groups of its name.

    A folder of the same name in shared memory, for :class:`SharedPage`, comes and goes with it.
    """
    folder = Path(tempfile.gettempdir()) / f"deeppool-{secrets.token_hex(4)}"
    in_memory = SHARED_MEMORY / folder.name
    groups = control_group.home()
    with cleanup_watchdog(folder, in_memory, groups=groups / folder.name if groups else None):
        try:
            folder.mkdir(mode=0o700)
            with contextlib.suppress(OSError):
                in_memory.mkdir(mode=0o700)
            yield folder
        finally:
            control_group.remove(groups, folder.name)
            for created in (folder, in_memory):
                shutil.rmtree(created, ignore_errors=True)
