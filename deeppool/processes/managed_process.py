"""Managed process: a child that reads commands as JSON lines on standard input and answers on standard output.

The parent kills its processes when it closes them. Those whose parent is gone are killed by the kernel where they are
forked (:func:`deeppool.processes.fork_server.end_with`); elsewhere they read the end of their input and exit. Each has
its own process group, which is killed with it: its own children, such as data loaders, may hang too.
"""

import contextlib
import errno
import json
import os
import queue
import site
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, TextIO

from deeppool.base import serialization
from deeppool.base.cancellation import wait
from deeppool.device.cpu import cpu_seconds_of
from deeppool.errors import RunError
from deeppool.processes.fork_server import kill_group
from deeppool.processes.fork_server_client import ForkedProcess, ForkServerClient, import_path
from deeppool.processes.fork_server_client import fork_server as own_fork_server

Message = dict[str, Any]
CONTROL = "control"
"""Name of control messages: see :meth:`CommandChannel.control_message`."""


class ProcessDiedError(RunError):
    """Raised when a process ends before its exit was requested."""


KILL_SECONDS = 10.0
"""Most seconds for which a process that was killed is waited for: one in a call to a driver that hangs does not end."""
CANNOT_START = {
    errno.EMFILE: "this process may open no more: ulimit -n raises its limit",
    errno.EAGAIN: "no more processes or threads: ulimit -u, or the limit of its container, gives more",
    errno.ENOMEM: "end what else uses memory",
}
"""What helps, by the system's error."""


class ProcessHandle(Protocol):
    """Handle of a managed process on any machine. Its answers go to an inbox; the answer None reports its end."""

    name: str
    inbox: "Inbox"

    def send(self, command: str, **arguments: Any) -> None:
        """Sends a command; a process that has ended is noticed when its answer is awaited."""

    def exit_code(self) -> int | None:
        """Returns the exit code, or None while it runs; minus the signal's number if a signal killed it."""

    def cpu_seconds(self) -> float | None:
        """Returns the CPU seconds used so far, or None once it has ended."""

    def exit_reason(self) -> str:
        """Returns how the process ended, with the last line of its standard error."""

    def kill(self) -> None:
        """Kills the process."""

    def close(self, grace: float = 2.0) -> None:
        """Requests the exit of the process, and kills it after ``grace`` seconds."""


Inbox = queue.SimpleQueue[tuple[ProcessHandle, Message | None]]


class ManagedProcess:
    """Managed process on this machine, ``python -m module``. A context manager that ends it."""

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
            name: for error messages, for example ``rank 1``.
            inbox: for its answers; several processes may share one. The answer None reports the end of the process.
            launcher: a command that starts the one that follows it, such as ``numactl`` or ``ip netns exec``.
            folder: working folder, from which its modules are imported; the current one by default.
            fork_server: forks the process; by default that of this process. Without one a new process is started.

        Raises:
            RunError: it cannot be started.
        """
        self.name = name
        self.inbox: Inbox = inbox if inbox is not None else queue.SimpleQueue()
        with _explained(name), contextlib.ExitStack() as undo:
            fork_server = None if launcher else fork_server or own_fork_server()
            self._errors = undo.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            self.process = (
                _spawn([*launcher, sys.executable, "-m", module], self._errors, folder)
                if fork_server is None
                else fork_server.fork(module, name, self._errors.fileno(), folder)
            )
            undo.callback(self._give_up)
            self._listener = threading.Thread(target=self._listen, daemon=True)
            self._listener.start()
            self._reaper = threading.Thread(target=self._reap, daemon=True)
            self._reaper.start()
            undo.pop_all()

    def _give_up(self) -> None:
        """Kills the process where no thread can wait for it."""
        kill_group(self.process.pid)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers:
            for line in answers:
                # A process that is killed may leave an incomplete line.
                if line.endswith("\n"):
                    self.inbox.put((self, json.loads(line)))

    def _reap(self) -> None:
        """Waits for the end and reports it after the last answer; its own children may keep the pipe open."""
        if isinstance(self.process, subprocess.Popen):
            with contextlib.suppress(ChildProcessError):
                # Not reaped yet, so no other process group can have its id.
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
            kill_group(self.process.pid)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self._listener.join(timeout=2.0)
        self.inbox.put((self, None))

    def send(self, command: str, **arguments: Any) -> None:
        """Sends a command; a process that has ended is noticed when its answer is awaited."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            # A user's number of steps or bound may be one of NumPy.
            line = json.dumps({"command": command, **arguments}, default=serialization.plain)
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def exit_code(self) -> int | None:
        """Returns the exit code, or None while it runs; minus the signal's number if a signal killed it."""
        return self.process.poll()

    def cpu_seconds(self) -> float | None:
        """Returns the CPU seconds used so far, or None once it has ended."""
        try:
            return cpu_seconds_of(self.process.pid)
        except ProcessLookupError:
            return None

    def exit_reason(self) -> str:
        """Returns how the process ended, with the last line of its standard error."""
        code = self.exit_code()
        if code is None:
            return "is running"
        if isinstance(self.process, ForkedProcess) and self.process.ended_because is not None:
            return self.process.ended_because
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return f"{how}: {lines[-1]}" if lines else how

    def close(self, grace: float = 2.0) -> None:
        """Requests the exit of the process, and kills it after ``grace`` seconds."""
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
        """Kills the process."""
        if self.process.returncode is None:
            kill_group(self.process.pid)
        self._release()

    def _release(self) -> None:
        """Waits for the end of a process that is ending, and closes its files."""
        assert self.process.stdin is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_SECONDS)
        self._reaper.join(timeout=5.0)
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self._errors.close()

    def __enter__(self) -> "ManagedProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    """Raises RunError for an error of the system with which a process does not start."""
    try:
        yield
    except OSError as error:
        advice = CANNOT_START.get(error.errno or 0)
        what = error if advice is None else error.strerror
        raise RunError(f"{name} cannot start: {what} ({advice or 'run again'})") from error
    except RuntimeError as error:  # of a thread, without a number
        raise RunError(f"{name} cannot start: {error} ({CANNOT_START[errno.EAGAIN]})") from error


def _spawn(command: Sequence[str], errors: IO[str], folder: str | os.PathLike[str] | None) -> "subprocess.Popen[str]":
    # Without the folders of Python and its packages, which would come before its own modules.
    packages = [*site.getsitepackages(), site.getusersitepackages(), *map(sysconfig.get_path, ("stdlib", "platstdlib"))]
    added = [
        each
        for each in import_path()
        if Path(each).exists() and not any(Path(each).is_relative_to(folder) for folder in packages)
    ]
    # A process group of its own: Ctrl-C in a terminal reaches the parent alone, which then ends its
    # processes. Not a session: Linux shares the CPU between sessions first (autogroups), and the lowest
    # priority inside one session would get half a core from a process of another.
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        process_group=0,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(added)},
    )


class CommandChannel:
    """Reads commands and sends answers in a managed process. Create it first in main: it redirects stray prints."""

    EXIT_SECONDS = 5.0
    """Seconds within which a process must exit after its parent is gone."""

    def __init__(self) -> None:
        """Redirects standard input and output, and starts reading commands."""
        self._answers: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._sending = threading.Lock()
        os.dup2(2, 1)
        # A process forked from this one closes its standard input, and would wait forever for the thread that reads
        # it, which it does not have.
        self._commands: TextIO = os.fdopen(os.dup(0), encoding="utf-8")
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115  as long as the process
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._control: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        exiting = False
        for line in self._commands:
            if not line.endswith("\n"):
                break
            message = json.loads(line)
            exiting = message["command"] == "exit"
            (self._control if message["command"] == CONTROL else self._queue).put(message)
        if exiting:
            # The process exits meanwhile, unless it hangs.
            time.sleep(self.EXIT_SECONDS)
        if os.getpgrp() == os.getpid():
            kill_group(os.getpid())
        os._exit(1)

    def next(self) -> Message:
        """Waits for the next command."""
        return self._queue.get()

    def control_message(self) -> Message | None:
        """Returns the newest control message since the last call, which modifies the current command."""
        newest = None
        while not self._control.empty():
            newest = self._control.get()
        return newest

    def pending(self) -> bool:
        """Whether a command is waiting."""
        return not self._queue.empty()

    def answer(self, event: str, **content: Any) -> None:
        """Sends one line to the parent, from any thread."""
        line = json.dumps({"event": event, **content}) + "\n"
        with self._sending:
            self._answers.write(line)
            self._answers.flush()


def receive(process: ProcessHandle, timeout: float) -> Message:
    """Waits for the next answer of a process with its own inbox.

    Raises:
        ProcessDiedError: it ended, or sent nothing for ``timeout`` seconds.
        RunCancelledError: this thread's run was cancelled.
    """
    try:
        _, message = wait(process.inbox, timeout)
    except queue.Empty:
        raise ProcessDiedError(f"{process.name} sent nothing for {timeout:.0f} s") from None
    if message is None:
        raise ProcessDiedError(f"{process.name} {process.exit_reason()}")
    return message


def close_all(processes: Sequence[ProcessHandle], grace: float = 2.0) -> None:
    """Ends several processes within ``grace`` seconds altogether, and kills those that still run."""
    for process in processes:
        process.send("exit")
    deadline = time.monotonic() + grace
    for process in processes:
        process.close(max(0.0, deadline - time.monotonic()))
