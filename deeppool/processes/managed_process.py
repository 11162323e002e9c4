"""A child process that is commanded by JSON lines on its standard input and answers on its standard output.

Nobody outlives anybody: the parent kills its children when it closes them, and a child whose parent is
gone reads the end of its input and dies, whatever it was doing. Each child has a process group, which dies
with it: the processes that it started itself, loaders of data for example, may hang too.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TextIO

from deeppool.base.cancellation import wait
from deeppool.device.cpu import cpu_seconds_of
from deeppool.errors import RunError
from deeppool.processes.fork_server import kill_group
from deeppool.processes.fork_server_client import ForkServerClient

Message = dict[str, Any]
CONTROL = "control"
"""The command that is none: see :meth:`CommandChannel.control_message`."""


class ProcessDiedError(RunError):
    """A child ended before it was told to."""


class ProcessHandle(Protocol):
    """The commanding end of a process, wherever it runs. Its answers go to an inbox; None: it has died."""

    name: str
    inbox: "Inbox"

    def send(self, command: str, **arguments: Any) -> None:
        """Gives a command; a process that has died is noticed when its answer is awaited."""

    def exit_code(self) -> int | None:
        """None while it runs; minus a signal's number where that killed it."""

    def cpu_seconds(self) -> float | None:
        """That it has used so far; None once it has ended."""

    def exit_reason(self) -> str:
        """How the process ended, with the last thing it said on standard error."""

    def kill(self) -> None:
        """Ends it now."""

    def close(self, grace: float = 2.0) -> None:
        """Asks it to exit, and kills it after ``grace`` seconds."""


Inbox = queue.SimpleQueue[tuple[ProcessHandle, Message | None]]


class ManagedProcess:
    """A process of this machine: starts ``python -m module`` and talks to it. A context manager that ends it."""

    def __init__(
        self,
        module: str,
        name: str,
        inbox: Inbox | None = None,
        launcher: Sequence[str] = (),
        folder: str | os.PathLike[str] | None = None,
        fork_server: ForkServerClient | None = None,
    ) -> None:
        """Starts the process.

        Args:
            module: to run; its main function makes a :class:`CommandChannel`.
            name: for messages to people, for example ``rank 1``.
            inbox: where answers go; several children may share one. None as an answer: the child has died.
            launcher: a command that starts the one that follows it, such as ``numactl`` or ``ip netns exec``.
            folder: to run in, from which its modules are imported; the current one unless given.
            fork_server: forks it; None: it is a new process.
        """
        self.name = name
        self.inbox: Inbox = inbox if inbox is not None else queue.SimpleQueue()
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  outlives this call
        try:
            self.process = (
                _spawn([*launcher, sys.executable, "-m", module], self._errors, folder)
                if fork_server is None
                else fork_server.fork(module, name, self._errors.fileno(), folder)
            )
        except BaseException:
            self._errors.close()
            raise
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._mourner = threading.Thread(target=self._mourn, daemon=True)
        self._mourner.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers:
            for line in answers:
                # A process that is killed may leave half a line behind.
                if line.endswith("\n"):
                    self.inbox.put((self, json.loads(line)))

    def _mourn(self) -> None:
        """Tells of the end, after the last answer; the end of the answers is none, as heirs may hold them open."""
        if isinstance(self.process, subprocess.Popen):
            with contextlib.suppress(ChildProcessError):
                # Not reaped yet, so nobody else can have the number of its group.
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            kill_group(self.process.pid)
        self.process.wait()
        self._listener.join(timeout=2.0)
        self.inbox.put((self, None))

    def send(self, command: str, **arguments: Any) -> None:
        """Gives a command; a child that has died is noticed when its answer is awaited."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self.process.stdin.flush()

    def exit_code(self) -> int | None:
        """None while it runs; minus a signal's number where that killed it."""
        return self.process.poll()

    def cpu_seconds(self) -> float | None:
        """That it has used so far; None once it has ended."""
        try:
            return cpu_seconds_of(self.process.pid)
        except ProcessLookupError:
            return None

    def exit_reason(self) -> str:
        """How the process ended, with the last thing it said on standard error."""
        code = self.exit_code()
        if code is None:
            return "is running"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return f"{how}: {lines[-1]}" if lines else how

    def close(self, grace: float = 2.0) -> None:
        """Asks the child to exit, and kills it after ``grace`` seconds."""
        self.send("exit")
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            kill_group(self.process.pid)
        self._release()

    def kill(self) -> None:
        """Ends the child now."""
        if self.process.returncode is None:
            kill_group(self.process.pid)
        self._release()

    def _release(self) -> None:
        """Waits for the end of a child that is ending, and closes what led to it."""
        assert self.process.stdin is not None
        self.process.wait()
        self._mourner.join(timeout=5.0)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self._errors.close()

    def __enter__(self) -> "ManagedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _spawn(command: Sequence[str], errors: IO[str], folder: str | os.PathLike[str] | None) -> "subprocess.Popen[str]":
    # A process group of its own: Ctrl-C in a terminal reaches the parent alone, which then ends its
    # children. Not a session: Linux shares the CPU between sessions first (autogroups), and the lowest
    # priority inside one session would get half a core from a process of another.
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        process_group=0,
        cwd=folder,
    )


class CommandChannel:
    """The child's end. Make one first thing in main: it also keeps stray prints out of the answers."""

    EXIT_SECONDS = 5.0
    """That a child which was told to exit has for it once its parent is gone."""

    def __init__(self) -> None:
        """Takes over standard input and output."""
        self._answers: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._turn = threading.Lock()
        os.dup2(2, 1)
        # A process forked from this one closes its standard input, and would wait for ever for the thread that reads
        # it, which it does not have.
        self._commands: TextIO = os.fdopen(os.dup(0), encoding="utf-8")
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  as long as the process
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._notes: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        told_to_exit = False
        for line in self._commands:
            if not line.endswith("\n"):
                break
            message = json.loads(line)
            told_to_exit = message["command"] == "exit"
            (self._notes if message["command"] == CONTROL else self._queue).put(message)
        if told_to_exit:
            # The process ends meanwhile, and this thread with it, unless it hangs.
            time.sleep(self.EXIT_SECONDS)
        if os.getpgrp() == os.getpid():
            kill_group(os.getpid())
        os._exit(1)

    def next(self) -> Message:
        """Waits for a command."""
        return self._queue.get()

    def control_message(self) -> Message | None:
        """The newest note since the last call; a note is no command: it changes how the present one is obeyed."""
        newest = None
        while not self._notes.empty():
            newest = self._notes.get()
        return newest

    def pending(self) -> bool:
        """Whether a command waits."""
        return not self._queue.empty()

    def answer(self, event: str, **content: Any) -> None:
        """Sends one line to the parent; any thread may."""
        line = json.dumps({"event": event, **content}) + "\n"
        with self._turn:
            self._answers.write(line)
            self._answers.flush()


def receive(process: ProcessHandle, timeout: float) -> Message:
    """The next answer of a process with an inbox of its own.

    Raises:
        ChildDiedError: it died, or said nothing for ``timeout`` seconds.
        RunCancelledError: this thread's run was cancelled.
    """
    try:
        _, message = wait(process.inbox, timeout)
    except queue.Empty:
        raise ProcessDiedError(f"{process.name} said nothing for {timeout:.0f} s") from None
    if message is None:
        raise ProcessDiedError(f"{process.name} {process.exit_reason()}")
    return message


def close_all(children: Sequence[ProcessHandle], grace: float = 2.0) -> None:
    """Ends several children, all of them within ``grace`` seconds and a kill."""
    for child in children:
        child.send("exit")
    deadline = time.monotonic() + grace
    for child in children:
        child.close(max(0.0, deadline - time.monotonic()))
