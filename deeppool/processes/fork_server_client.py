"""Client of the fork server: starts worker processes from one that has torch loaded.

Importing torch costs seconds of CPU time. The fork server (:mod:`deeppool.processes.fork_server`) spends them once per
launcher: a second run in the same notebook starts at once, and a background job that starts beside a running foreground
takes little CPU time from it. A command spends them itself and forks its server (:func:`import_and_fork`). Linux only:
elsewhere the libraries below torch do not survive a fork.
"""

# Not multiprocessing's forkserver: what a killed worker had started survives it, and its modules are fixed.

import atexit
import contextlib
import errno
import functools
import gc
import importlib
import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from deeppool.errors import RunError
from deeppool.processes import stop_detector
from deeppool.processes.fork_server import REPORT_BYTES, ignore_fork_warning, kill_group, send_request, serve_in_fork

FORKS = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Whether this platform has fork servers."""
START_SECONDS = 300
"""Time limit for the imports of the first worker, on a busy machine."""
LINK_CLOSED = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF)
"""Errors of sending to a server that is gone."""
CLOSING_SECONDS = 2.0
"""Time limit for a server that was drained to end."""
TITLE_ROOM = 80
"""Characters by which a worker's title may be longer than the server's own command line; in a fork of a command it ends
where that command's line does."""
READ_WHEN_LOADED = tuple("ATEN CUDA DNNL GOMP GLOO KMP LD_ MKL NCCL NUMEXPR OMP OPENBLAS PYTHON PYTORCH TORCH".split())
"""Prefixes of environment variables that libraries read when they are loaded: a server with other values is no use."""
READ_LATER = ("TORCHINDUCTOR_CACHE_DIR",)
"""Variables with such a prefix that are read when they are needed; torch itself sets this one at the first export."""


class ForkedProcess:
    """A worker forked by the server, with the part of :class:`subprocess.Popen`'s interface that its users need."""

    def __init__(self, stdin: TextIO, stdout: TextIO) -> None:
        """Stores this side's ends of the worker's pipes; ``pid`` is unknown until the server reports it."""
        self.pid, self.stdin, self.stdout = 0, stdin, stdout
        self.returncode: int | None = None
        self.ended_because: str | None = None
        """Why it was ended from here, in the words that follow its name; None: it was not."""
        self.error: int | None = None
        """Number of the system's error for which it could not be started; None: there was none."""
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

    def set_refused(self, error: int) -> None:
        """Records the server's report that the system gave it no process."""
        self.error = error
        self.started.set()

    def set_ended(self, code: int, because: str | None = None) -> None:
        """Records the server's report of the end, or that the server itself is gone."""
        self.returncode, self.ended_because = code, because or self.ended_because
        self._ended.set()
        self.started.set()


class ForkServerClient:
    """Client that starts a fork server and forks processes through it. All of them end with the client's process.

    They hold one end of a pipe, the lifeline, and this process alone holds the other: when it is closed, with this
    process at the latest, the kernel kills them (:func:`deeppool.processes.fork_server.end_with`).
    """

    def __init__(self, *, fork: bool = False) -> None:
        """Starts the server.

        Args:
            fork: it is a fork of this process, which has imported modules and done nothing else.
        """
        self._environment = dict(os.environ)
        self._link, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline, self._lifeline = os.pipe()
        _lifelines.add(self._lifeline)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._workers: dict[int, ForkedProcess] = {}
        """Number of the request → its process, until the server reports its end."""
        self.gone = False
        self._how = ""
        """How the server ended, for messages."""
        with link, os.fdopen(lifeline, "rb"):
            inherited = [link.fileno(), lifeline]
            serve = functools.partial(serve_in_fork, *inherited)
            # A process group of its own, but no session: as for every process, see deeppool.processes.managed_process.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deeppool.processes.fork_server", *map(str, inherited), TITLE_ROOM * " "],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=inherited,
                process_group=0,
                # It never returns, so a fork starts no program, and is waited for and killed as one.
                preexec_fn=serve if fork else None,  # noqa: PLW1509  no other thread runs
                restore_signals=not fork,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def fork(self, module: str, name: str, stderr: int, folder: str | os.PathLike[str] | None = None) -> ForkedProcess:
        """Starts a process that runs ``module``'s main function, once the server has imported it.

        Args:
            module: to run.
            name: for the process title.
            stderr: file descriptor of its standard error.
            folder: working folder, from which its modules are imported; the current one by default.

        Raises:
            RunError: the server is gone, was stopped, or hangs.
            OSError: this process may open no more files, or the system gives no more processes, or no memory for one.
        """
        request = {
            "module": module,
            "title": f"{module}: {name}",
            "folder": str(folder or Path.cwd()),
            "environment": self._environment_changes(),
            "import_path": import_path(),
        }
        child_stdin, stdin = os.pipe()
        try:
            stdout, child_stdout = os.pipe()
        except OSError:
            os.close(child_stdin)
            os.close(stdin)
            raise
        process = ForkedProcess(_open_text(stdin, "w"), _open_text(stdout, "r"))
        try:
            with self._lock:
                number = next(self._numbers)
                if not self.gone:
                    self._workers[number] = process
            try:
                self._send([child_stdin, child_stdout, stderr], number, **request)
            except OSError:
                # It was not sent, and nobody will answer it.
                self._workers.pop(number, None)
                raise
            finally:
                os.close(child_stdin)
                os.close(child_stdout)
            # By the second: if this process is stopped for a while, that is no delay of the server.
            if not self.gone and not any(process.started.wait(1.0) for _ in range(START_SECONDS)):
                self._how = f"did not start it within {START_SECONDS} s"
            if process.error is not None:
                raise OSError(process.error, os.strerror(process.error))
            if self.gone or not process.pid:
                self.close()
                raise RunError(f"{name} cannot start: the process that it is forked from {self._how} (run again)")
        except BaseException:
            process.stdin.close()
            process.stdout.close()
            raise
        return process

    def _listen(self) -> None:
        with self._link, selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            selector.register(self._link, selectors.EVENT_READ)
            detector = stop_detector.StopDetector()
            while True:
                if not selector.select(stop_detector.CHECK_SECONDS):
                    self._end_stopped(detector)
                elif data := self._link.recv(REPORT_BYTES):
                    self._on_report(json.loads(data))
                else:
                    break
        self._on_end()

    def _on_report(self, message: Mapping[str, int]) -> None:
        if "pid" in message:
            self._workers[message["number"]].set_started(message["pid"])
        elif "error" in message:
            self._workers.pop(message["number"]).set_refused(message["error"])
        else:
            self._workers.pop(message["number"]).set_ended(message["code"])

    def _end_stopped(self, detector: stop_detector.StopDetector) -> None:
        """Kills what a signal has stopped for too long: nothing else would notice a helper that does nothing."""
        workers = {process.pid: process for process in tuple(self._workers.values()) if process.pid}
        how = f"was stopped by a signal for {stop_detector.STOPPED_SECONDS:.0f} s"
        for pid in detector.check([self._process.pid, *workers]):
            if pid == self._process.pid:
                self._how = how
                self._process.kill()
            else:
                workers[pid].ended_because = f"{how}, and then killed"
                kill_group(pid)

    def _on_end(self) -> None:
        """Ends what is left of the server and of its workers."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSING_SECONDS)
        _close_lifeline(self._lifeline)
        code = self._process.wait()
        self._how = self._how or (f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}")
        with self._lock:
            self.gone = True
            orphans = list(self._workers.values())
        for process in orphans:
            if process.pid:
                kill_group(process.pid)
            process.set_ended(-signal.SIGKILL, f"was ended with the process that it was forked from, which {self._how}")

    @property
    def is_compatible(self) -> bool:
        """Whether the server runs and its libraries were loaded with the variables that a new process would have."""
        changes = self._environment_changes().keys() - READ_LATER
        return not self.gone and not any(name.startswith(READ_WHEN_LOADED) for name in changes)

    def _environment_changes(self) -> dict[str, str | None]:
        """This process's variables that differ from those the server was started with; None: to be removed."""
        names = self._environment.keys() | os.environ.keys()
        return {name: os.environ.get(name) for name in names if self._environment.get(name) != os.environ.get(name)}

    def preload(self, module: str) -> None:
        """Makes the server import a module in advance; returns at once."""
        with contextlib.suppress(OSError):
            self._send(module=module)

    def drain(self) -> None:
        """Lets the server end with its last process; it forks no more."""
        with contextlib.suppress(OSError):
            self._send(drain=True)

    def close(self) -> None:
        """Ends the server and its processes."""
        _close_lifeline(self._lifeline)
        # It may still be starting.
        self._process.kill()
        self._listener.join()

    def _send(self, descriptors: Sequence[int] = (), number: int | None = None, **request: Any) -> None:
        """Sends a request; the listener notices that the server is gone.

        Raises:
            OSError: the request could not be made, or not be sent for another reason.
        """
        try:
            send_request(self._link, descriptors, request, number)
        except OSError as error:
            if error.errno not in LINK_CLOSED:
                raise


_open_lock = threading.Lock()
_client: ForkServerClient | None = None
_lifelines: set[int] = set()
"""This process's ends of the lifelines of all its fork servers."""


def import_path() -> list[str]:
    """Returns the folders from which this process imports: a script or notebook may have added that of its models."""
    return [str(Path(folder).absolute()) for folder in sys.path if folder]


def _close_lifeline(lifeline: int) -> None:
    """Closes this end of a lifeline, by which the kernel kills the processes at the other; does nothing if it is."""
    with _open_lock:
        if lifeline in _lifelines:
            _lifelines.remove(lifeline)
            os.close(lifeline)


def fork_server(*, fork: bool = False) -> ForkServerClient | None:
    """Returns the fork server of this process, started on first use, or None on platforms without one.

    Args:
        fork: it is a fork of this process: see :class:`ForkServerClient`.
    """
    global _client  # noqa: PLW0603  one per process is the point
    if not FORKS:
        return None
    with _open_lock:
        if _client is not None and _client.is_compatible:
            return _client
        if _client is not None:
            _client.drain()
        _client = ForkServerClient(fork=fork)
        atexit.register(_client.close)
        return _client


def import_and_fork(own: str, workers: str) -> None:
    """Imports a module, then forks the fork server from this process: torch is imported once. A command begins so.

    Where something has happened that a fork would inherit, with torch or in a thread, the server is a new process.

    Args:
        own: name of the module that this process needs.
        workers: name of the module that its workers run, which the server imports in advance.
    """
    nothing_happened = "torch" not in sys.modules and threading.active_count() == 1
    if nothing_happened:
        # As in the server: what is imported never becomes garbage.
        gc.disable()
        importlib.import_module(own)
        gc.freeze()
        gc.enable()
        ignore_fork_warning()
    if (server := fork_server(fork=nothing_happened)) is not None:
        server.preload(workers)


def _reset_in_fork() -> None:
    """Drops the parent's fork server, and its lock, which a thread of the parent may have held."""
    global _client, _open_lock
    _client, _open_lock = None, threading.Lock()
    # A fork that outlives this process must not keep its runs alive.
    while _lifelines:
        os.close(_lifelines.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_fork)


def _open_text(descriptor: int, mode: str) -> TextIO:
    stream: TextIO = os.fdopen(descriptor, mode, encoding="utf-8")  # type: ignore[assignment]
    return stream
