"""Client of the fork server: starts worker processes from one that has torch loaded.

Importing torch costs seconds of CPU time. The fork server (:mod:`deeppool.processes.fork_server`) spends them once per
launcher: a second run in the same notebook starts at once, and a background job that starts beside a running foreground
takes little CPU time from it. Linux only: elsewhere the libraries below torch do not survive a fork.
"""

# Not multiprocessing's forkserver: what a killed worker had started survives it, and its modules are fixed.

import atexit
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from deeppool.errors import RunError
from deeppool.processes.fork_server import MESSAGE_BYTES, kill_group

FORKS = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Whether this platform has fork servers."""
START_SECONDS = 120.0
"""Time limit for the imports of the first worker, on a busy machine."""
CLOSING_SECONDS = 2.0
"""Time limit for the server to end its workers and itself."""
TITLE_ROOM = 80
"""Characters by which a worker's title may be longer than the server's own command line."""
READ_WHEN_LOADED = tuple("ATEN CUDA DNNL GOMP GLOO KMP LD_ MKL NCCL NUMEXPR OMP OPENBLAS PYTHON PYTORCH TORCH".split())
"""Prefixes of environment variables that libraries read when they are loaded: a server with other values is no use."""


class ForkedProcess:
    """A worker forked by the server, with the part of :class:`subprocess.Popen`'s interface that its users need."""

    def __init__(self, stdin: TextIO, stdout: TextIO) -> None:
        """Stores this side's ends of the worker's pipes; ``pid`` is unknown until the server reports it."""
        self.pid, self.stdin, self.stdout = 0, stdin, stdout
        self.returncode: int | None = None
        self.stderr: TextIO | None = None
        self.started, self._ended = threading.Event(), threading.Event()

    def poll(self) -> int | None:
        """Returns the exit code, or None while it runs; minus the signal's number if a signal killed it."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end and returns the exit code, as :meth:`subprocess.Popen.wait` does."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal; does nothing once the process has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.returncode is None:
                os.kill(self.pid, number)

    def set_started(self, pid: int) -> None:
        """Records the server's report of the start."""
        self.pid = pid
        self.started.set()

    def set_ended(self, code: int) -> None:
        """Records the server's report of the end, or that the server itself is gone."""
        self.returncode = code
        self._ended.set()
        self.started.set()


class ForkServerClient:
    """Client that starts a fork server and forks processes through it. The server ends with the client's process."""

    def __init__(self) -> None:
        """Starts the server."""
        self._environment = dict(os.environ)
        self._link, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._workers: dict[int, ForkedProcess] = {}
        """Number of the request → its process, until the server reports its end."""
        self.gone = False
        with link:
            # A process group of its own, but no session: as for every process, see deeppool.processes.managed_process.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deeppool.processes.fork_server", str(link.fileno()), TITLE_ROOM * " "],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[link.fileno()],
                process_group=0,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def fork(
        self,
        module: str,
        name: str,
        stderr: int,
        folder: str | os.PathLike[str] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> ForkedProcess:
        """Starts a process that runs ``module``'s main function, once the server has imported it.

        Args:
            module: to run.
            name: for the process title.
            stderr: file descriptor of its standard error.
            folder: working folder, from which its modules are imported; the current one by default.
            arguments: ``sys.argv`` after the module.
            environment: all of its variables; by default those of this process.

        Raises:
            RunError: the server is gone, or hangs.
        """
        request = {
            "module": module,
            "title": f"{module}: {name}",
            "folder": str(folder or Path.cwd()),
            "arguments": list(arguments),
            "environment": self._environment_changes(os.environ if environment is None else environment),
        }
        (child_stdin, stdin), (stdout, child_stdout) = os.pipe(), os.pipe()
        process = ForkedProcess(_open_text(stdin, "w"), _open_text(stdout, "r"))
        try:
            with self._lock:
                number = next(self._numbers)
                if not self.gone:
                    self._workers[number] = process
            try:
                self._send([child_stdin, child_stdout, stderr], **request, number=number)
            finally:
                os.close(child_stdin)
                os.close(child_stdout)
            if self.gone or not process.started.wait(START_SECONDS) or not process.pid:
                self.close()
                raise RunError(f"{name} cannot start: the process that it is forked from is gone (run again)")
        except BaseException:
            process.stdin.close()
            process.stdout.close()
            raise
        return process

    def _listen(self) -> None:
        with self._link, contextlib.suppress(OSError):
            while data := self._link.recv(MESSAGE_BYTES):
                message = json.loads(data)
                if "pid" in message:
                    self._workers[message["number"]].set_started(message["pid"])
                else:
                    self._workers.pop(message["number"]).set_ended(message["code"])
        try:
            self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            # It is importing a module, or was stopped by a signal.
            self._process.kill()
            self._process.wait()
        with self._lock:
            self.gone = True
            orphans = list(self._workers.values())
        for process in orphans:
            if process.pid:
                kill_group(process.pid)
            process.set_ended(-signal.SIGKILL)

    @property
    def is_compatible(self) -> bool:
        """Whether the server runs and its libraries were loaded with the variables that a new process would have."""
        changes = self._environment_changes(os.environ)
        return not self.gone and not any(name.startswith(READ_WHEN_LOADED) for name in changes)

    def _environment_changes(self, wanted: Mapping[str, str]) -> dict[str, str | None]:
        """Variables that differ from those the server was started with; None: to be removed."""
        names = self._environment.keys() | wanted.keys()
        return {name: wanted.get(name) for name in names if self._environment.get(name) != wanted.get(name)}

    def preload(self, module: str) -> None:
        """Makes the server import a module in advance; returns at once."""
        self._send(module=module)

    def drain(self) -> None:
        """Lets the server end with its last process; it forks no more."""
        self._send(drain=True)

    def close(self) -> None:
        """Ends the server and its processes."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._listener.join()

    def _send(self, descriptors: Sequence[int] = (), **request: Any) -> None:
        """Sends a request; the listener notices that the server is gone."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._link, [json.dumps(request).encode()], descriptors)


_open_lock = threading.Lock()
_client: ForkServerClient | None = None


def fork_server() -> ForkServerClient | None:
    """Returns the fork server of this process, started on first use, or None on platforms without one."""
    global _client  # noqa: PLW0603  one per process is the point
    if not FORKS:
        return None
    with _open_lock:
        if _client is not None and _client.is_compatible:
            return _client
        if _client is not None:
            _client.drain()
        _client = ForkServerClient()
        atexit.register(_client.close)
        return _client


def _reset_in_fork() -> None:
    """Drops the parent's fork server, and its lock, which a thread of the parent may have held."""
    global _client, _open_lock
    _client, _open_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_fork)


def _open_text(descriptor: int, mode: str) -> TextIO:
    stream: TextIO = os.fdopen(descriptor, mode, encoding="utf-8")  # type: ignore[assignment]
    return stream
