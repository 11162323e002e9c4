"""Ranks: child processes that meet in torch.distributed, so that one which dies ends all."""

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from deeppool.cancellation import wait
from deeppool.child import Inbox, Message, Process, close_all
from deeppool.errors import RankFailedError
from deeppool.place import Place


class RankGroup:
    """The launcher's end. Leaving its ``with`` block ends every process, whatever happened."""

    def __init__(self, place: Place) -> None:
        """Starts with no rank; ``place`` is where they will be."""
        self._place = place
        self._inbox: Inbox = queue.SimpleQueue()
        self._ranks: list[Process] = []

    def start(self, module: str) -> Process:
        """Starts the next rank as ``python -m module``."""
        rank = len(self._ranks)
        process = self._place.start(rank, module, f"rank {rank}", self._inbox)
        self._ranks.append(process)
        return process

    def send(self, command: str, **arguments: Any) -> None:
        """Gives every rank the same command."""
        for child in self._ranks:
            child.send(command, **arguments)

    def collect(
        self, event: str, patience: float, when: str, on_message: Callable[[Message], None] | None = None
    ) -> list[Message]:
        """One answer of each rank, in the order of ranks.

        Args:
            event: of the answers.
            patience: seconds that nobody may say anything.
            when: what the ranks do meanwhile, for the error.
            on_message: is given what else they say.

        Raises:
            RankFailedError: a rank died, or all were silent for too long; all are ended by then.
            RunCancelledError: this thread's run was cancelled.
        """
        answers: dict[Process, Message] = {}
        while len(answers) < len(self._ranks):
            try:
                child, message = wait(self._inbox, patience)
            except queue.Empty:
                silent = ", ".join(child.name for child in self._ranks if child not in answers)
                self.close(grace=0)
                raise RankFailedError(
                    f"{silent} said nothing for {patience:.0f} s {when}; all ranks were stopped "
                    "(a rank hangs: is memory short?)"
                ) from None
            if message is None:
                self._fail(child, when)
            elif message["event"] == event:
                answers[child] = message
            elif on_message is not None:
                on_message(message)
        return [answers[child] for child in self._ranks]

    def watch(self, seconds: float, when: str) -> None:
        """Waits; a rank that dies meanwhile is noticed at once.

        Raises:
            RankFailedError: one did; all are ended by then.
        """
        with contextlib.suppress(queue.Empty):
            child, _ = wait(self._inbox, seconds)
            self._fail(child, when)

    def _fail(self, first: Process, when: str) -> None:
        """Ends all ranks and blames the one that did not die of another's death."""
        culprit = first
        deadline = time.monotonic() + 1.0
        # A killed rank breaks its peers' connections, and theirs may be the first end that is noticed.
        while time.monotonic() < deadline:
            killed = [child for child in self._ranks if (child.exit_code() or 0) < 0]
            if killed:
                culprit = killed[0]
                break
            time.sleep(0.05)
        fate = culprit.fate()
        self.close(grace=0)
        raise RankFailedError(
            f"{culprit.name} {fate} {when}; the other ranks were stopped (run again, or see its last words)"
        )

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
    """A temporary folder that only this user can enter (mode 0700, as tempfile makes them)."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="deeppool-") as name:
        yield Path(name)
