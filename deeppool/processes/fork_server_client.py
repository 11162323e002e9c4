"""A process that has loaded what ranks and background jobs need, and forks them from itself.

Importing torch takes a process seconds of CPU time. With a nursery it is spent once per launcher: a second run in the
same notebook starts at once, and a background job that starts beside a running foreground takes nothing from it.

The process itself is :mod:`deeppool.processes.fork_server`; here is its launcher's end. It forks on Linux only: elsewhere the
libraries below torch do not survive it.
"""

import atexit
import contextlib
import itertools
import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from deeppool.errors import RunError
from deeppool.processes.fork_server import REQUEST_BYTES, become_fork_server, kill_group

FORKS = sys.platform == "linux" and hasattr(os, "pidfd_open")
"""Whether there can be nurseries here."""
BIRTH_SECONDS = 120.0
"""For importing what the first child needs, on a machine that is busy."""
CLOSING_SECONDS = 2.0
"""For it to end its children and itself."""
TITLE_ROOM = 80
"""Characters that a child's title may need more than the nursery's own command has."""
READ_WHEN_LOADED = tuple("ATEN CUDA DNNL GOMP GLOO KMP LD_ MKL NCCL NUMEXPR OMP OPENBLAS PYTHON PYTORCH TORCH".split())
"""How the variables begin that libraries read when they are loaded: with other ones, a nursery is no use."""


class ForkedProcess:
    """A child of the nursery's, as its launcher sees it: what :class:`subprocess.Popen` is for one's own."""

    def __init__(self, pid: int, stdin: TextIO, stdout: TextIO) -> None:
        """It has just been born; ``stdin`` and ``stdout`` are our ends of its pipes."""
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None
        self.stderr: TextIO | None = None
        self._over = threading.Event()

    def poll(self) -> int | None:
        """None while it runs; minus a signal's number where that killed it."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As :meth:`subprocess.Popen.wait`."""
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Does nothing once it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.returncode is None:
                os.kill(self.pid, number)

    def ended(self, code: int) -> None:
        """The nursery says so, or is gone itself."""
        self.returncode = code
        self._over.set()


class _ForkOfThisProcess:
    """A fork of this process: what :class:`subprocess.Popen` is for a new one."""

    def __init__(self, pid: int) -> None:
        self._pid, self._end = pid, os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> None:
        with selectors.DefaultSelector() as ended:
            ended.register(self._end, selectors.EVENT_READ)
            if not ended.select(timeout):
                raise subprocess.TimeoutExpired(str(self._pid), timeout or 0.0)
        os.waitpid(self._pid, 0)
        os.close(self._end)

    def kill(self) -> None:
        signal.pidfd_send_signal(self._end, signal.SIGKILL)


Start = Callable[[socket.socket, socket.socket], "subprocess.Popen[bytes] | _ForkOfThisProcess"]
"""Starts the process of a nursery, given the launcher's end of its link and its own."""


def _spawned(_: socket.socket, link: socket.socket) -> "subprocess.Popen[bytes]":
    # A process group of its own, and no session: as for every child, see deeppool.processes.managed_process.
    return subprocess.Popen(
        [sys.executable, "-m", "deeppool.processes.fork_server", str(link.fileno()), TITLE_ROOM * " "],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[link.fileno()],
        process_group=0,
    )


def _forked(ours: socket.socket, link: socket.socket) -> _ForkOfThisProcess:
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        ours.close()
        become_fork_server(link, f"deeppool.processes.fork_server of {own}")
    # Here as in the fork: whoever comes first.
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return _ForkOfThisProcess(pid)


class ForkServerClient:
    """The launcher's end. It goes with the launcher."""

    def __init__(self, start: Start = _spawned) -> None:
        """Starts the process."""
        self._environment = dict(os.environ)
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._numbers = itertools.count()
        self._asking = threading.Lock()
        self._answers: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._living: dict[int, ForkedProcess] = {}
        self._early: dict[int, int] = {}
        """Exit codes of children that had ended before we knew them."""
        self._changing = threading.Lock()
        self.gone = False
        with theirs:
            self._process = start(self._link, theirs)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def fork(
        self,
        module: str,
        name: str,
        errors: int,
        folder: str | os.PathLike[str] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> ForkedProcess:
        """A new process that runs ``module``'s main function, once the nursery has imported it.

        Args:
            module: to run.
            name: for lists of processes.
            errors: file descriptor of its standard error.
            folder: to run in, from which its modules are imported; the current one unless given.
            arguments: that it finds in ``sys.argv``.
            environment: all of its variables; those of this process unless given.

        Raises:
            RunError: the nursery is gone, or hangs.
        """
        request = {
            "module": module,
            "title": f"{module}: {name}",
            "folder": str(folder or Path.cwd()),
            "arguments": list(arguments),
            "environment": self._changes(os.environ if environment is None else environment),
        }
        with contextlib.ExitStack() as stack, self._asking:
            ends = [_pipe(stack), _pipe(stack)]
            (reads, stdin), (stdout, writes) = ends
            number = next(self._numbers)
            try:
                socket.send_fds(
                    self._link, [json.dumps({**request, "number": number}).encode()], [reads, writes, errors]
                )
                pid = self._pid_of(number)
            except (OSError, queue.Empty):
                self._process.kill()
                raise RunError(f"{name} cannot start: the process that it is forked from is gone (run again)") from None
            child = ForkedProcess(pid, _text(stdin, "w"), _text(stdout, "r"))
            # Ours from now on; the other ends are the child's.
            stack.pop_all()
            os.close(reads)
            os.close(writes)
        with self._changing:
            self._living[pid] = child
            code = self._early.pop(pid, None)
            if code is not None or self.gone:
                del self._living[pid]
                child.ended(-signal.SIGKILL if code is None else code)
        return child

    def _pid_of(self, number: int) -> int:
        """The answer to a request; an earlier one may be left by somebody who was interrupted."""
        while (answer := self._answers.get(timeout=BIRTH_SECONDS)) is not None:
            if answer[0] == number:
                return answer[1]
        raise BrokenPipeError

    def _listen(self) -> None:
        with self._link, contextlib.suppress(OSError):
            while told := self._link.recv(REQUEST_BYTES):
                message = json.loads(told)
                if "number" in message:
                    self._answers.put((message["number"], message["pid"]))
                else:
                    self._bury(message["pid"], message["code"])
        try:
            self._process.wait(CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            # It is importing something, or was stopped.
            self._process.kill()
            self._process.wait()
        with self._changing:
            self.gone = True
            orphans, self._living = list(self._living.values()), {}
        self._answers.put(None)
        for child in orphans:
            kill_group(child.pid)
            child.ended(-signal.SIGKILL)

    def _bury(self, pid: int, code: int) -> None:
        with self._changing:
            child = self._living.pop(pid, None)
            if child is None:
                self._early[pid] = code
        if child is not None:
            child.ended(code)

    @property
    def fits(self) -> bool:
        """Whether its libraries are what those of a new process would be."""
        return not self.gone and not any(name.startswith(READ_WHEN_LOADED) for name in self._changes(os.environ))

    def _changes(self, wanted: Mapping[str, str]) -> dict[str, str | None]:
        """Of the environment that it was started with."""
        names = self._environment.keys() | wanted.keys()
        return {name: wanted.get(name) for name in names if self._environment.get(name) != wanted.get(name)}

    def prepare(self, module: str) -> None:
        """Lets it import what it will need, while the launcher does something else."""
        self._tell(module=module)

    def retire(self) -> None:
        """It forks no more, and ends with its last child."""
        self._tell(retire=True)

    def close(self) -> None:
        """Ends it, and what is left of its children."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        self._listener.join()

    def _tell(self, **request: Any) -> None:
        with contextlib.suppress(OSError):
            self._link.send(json.dumps(request).encode())


_OPENING = threading.Lock()
_OPEN: ForkServerClient | None = None


def fork_server() -> ForkServerClient | None:
    """This process's own; None where there can be none."""
    if not FORKS:
        return None
    with _OPENING:
        if _OPEN is not None and _OPEN.fits:
            return _OPEN
        if _OPEN is not None:
            _OPEN.retire()
        return _open(ForkServerClient())


def fork_own_server() -> None:
    """Makes this process's nursery a fork of it, which has its modules from the start.

    For a process that a nursery has forked, first thing in its main function: it must not have a thread yet.
    """
    with _OPENING:
        _open(ForkServerClient(_forked))


def _open(opened: ForkServerClient) -> ForkServerClient:
    global _OPEN  # noqa: PLW0603  one per process is the point
    _OPEN = opened
    atexit.register(opened.close)
    return opened


def _forget() -> None:
    """A fork has no nursery yet, and nobody in it is opening one."""
    global _OPEN, _OPENING
    _OPEN, _OPENING = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Read and write end, closed with the stack."""
    ends = os.pipe()
    for end in ends:
        stack.callback(os.close, end)
    return ends


def _text(descriptor: int, mode: str) -> TextIO:
    stream: TextIO = os.fdopen(descriptor, mode, encoding="utf-8")  # type: ignore[assignment]
    return stream
