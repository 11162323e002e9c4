"""Fork server process: imports torch once, forks worker processes from itself and reports their exit codes.

Its only state is its loaded modules and its only thread the main one, so a fork behaves like a new process.
"""

import atexit
import contextlib
import errno
import fcntl
import gc
import importlib
import json
import os
import random
import selectors
import signal
import socket
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from deeppool.processes import before_forks

REPORT_BYTES = 2**10
"""Maximum size of the server's reports: two numbers."""
STREAMS = 3
"""Descriptors that may come before that of the request: standard input, output and error of a worker."""
NUMBER_BYTES = 20
"""Maximum size of a message: the number of a request for a worker, of any other ``-``."""


class ForkServer:
    """Forks processes for one client and reports how they ended."""

    def __init__(self, link: socket.socket, lifeline: int) -> None:
        """Serves the client at the other end of ``link``, and ends with it: see :func:`end_with`."""
        self.link, self.lifeline = link, end_with(lifeline)
        self.workers: dict[int, tuple[int, int]] = {}
        """pidfd → number of the request, process id."""
        self.accepting = True
        self.selector = selectors.DefaultSelector()
        self.selector.register(link, selectors.EVENT_READ)

    def serve(self) -> Callable[[], None] | None:
        """Runs until the link is closed and all workers have ended; in a fork, returns its main function."""
        while self.accepting or self.workers:
            for key, _ in self.selector.select():
                if key.fileobj is not self.link:
                    self._reap(key.fd)
                elif (main := self._handle_request()) is not None:
                    return main
        return None

    def _handle_request(self) -> Callable[[], None] | None:
        data, descriptors, flags, _ = socket.recv_fds(self.link, NUMBER_BYTES, STREAMS + 1)
        if flags & socket.MSG_CTRUNC:
            # This process may open no more files: the kernel has left some out.
            self._refuse(data, descriptors, errno.EMFILE)
            return None
        request: dict[str, Any] = _read_request(descriptors.pop()) if data else {"drain": True}
        if "drain" in request:
            self.accepting = False
            self.selector.unregister(self.link)
            return None
        # The worker raises the same error on its own standard error.
        with contextlib.suppress(Exception):
            importlib.import_module(request["module"])
            before_forks.run()
        if not data.isdigit():
            return None
        # Nothing that is loaded here becomes garbage, and looking for it would copy its memory.
        gc.freeze()
        try:
            pid = os.fork()
        except OSError as error:
            # The workers that there are go on.
            self._refuse(data, descriptors, error.errno)
            return None
        if pid == 0:
            gc.enable()
            _leave_finalizers()
            self._detach(descriptors)
            return lambda: _run_module(**request)
        for descriptor in descriptors:
            os.close(descriptor)
        # In the worker too: whichever of the two runs first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            kill_group(pid)
            os.waitpid(pid, 0)
            self._refuse(data, (), error.errno)
            return None
        self.workers[pidfd] = int(data), pid
        self.selector.register(pidfd, selectors.EVENT_READ)
        self._report(number=int(data), pid=pid)
        return None

    def _refuse(self, number: bytes, descriptors: Sequence[int], reason: int | None) -> None:
        """Reports the system's error that kept a worker from being started."""
        for descriptor in descriptors:
            os.close(descriptor)
        if number.isdigit():
            self._report(number=int(number), error=reason or errno.EAGAIN)

    def _reap(self, pidfd: int) -> None:
        """Kills the descendants of a worker before reaping it, while no other process can have its process group id."""
        number, pid = self.workers.pop(pidfd)
        self.selector.unregister(pidfd)
        os.close(pidfd)
        kill_group(pid)
        _, status = os.waitpid(pid, 0)
        self._report(number=number, code=os.waitstatus_to_exitcode(status))

    def _report(self, **message: int) -> None:
        with contextlib.suppress(OSError):
            self.link.send(json.dumps(message).encode())

    def _detach(self, standard: Sequence[int]) -> None:
        """Closes every descriptor of the server in a new worker and installs its standard streams."""
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        end_with(self.lifeline)
        self.selector.close()
        self.link.close()
        for pidfd in self.workers:
            os.close(pidfd)
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)


def send_request(
    link: socket.socket, streams: Sequence[int], request: Mapping[str, object], number: int | None = None
) -> None:
    """Sends a request of any size, in a file in memory: a message of the socket has a maximum size.

    Args:
        link: socket of the client.
        streams: standard streams of the worker, or none.
        request: its fields.
        number: of a request for a worker.
    """
    with os.fdopen(os.memfd_create("deeppool-fork-request"), "w+b") as content:
        content.write(json.dumps(request).encode())
        content.flush()
        socket.send_fds(link, [b"-" if number is None else str(number).encode()], [*streams, content.fileno()])


def _read_request(descriptor: int) -> dict[str, Any]:
    with os.fdopen(descriptor, "rb") as content:
        content.seek(0)
        request: dict[str, Any] = json.load(content)
    return request


def end_with(lifeline: int) -> int:
    """Makes the kernel kill this process's group once nobody holds the other end of a pipe; returns the end to keep.

    It kills processes that are stopped or hang, too, and needs no process in between. (Not PR_SET_PDEATHSIG: that
    signal is sent when the *thread* that forked ends, and spares what a worker has started.)
    """
    # Opened again: a fork shares its parent's open file, and with it the group that is signalled.
    own = os.open(f"/proc/self/fd/{lifeline}", os.O_RDONLY | os.O_NONBLOCK)
    os.close(lifeline)
    fcntl.fcntl(own, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):
        # Nothing is ever written: this is the end of the pipe, reached before the signal was asked for.
        os.read(own, 1)
        os.killpg(0, signal.SIGKILL)
    return own


def kill_group(leader: int) -> None:
    """Kills a process group; does nothing if it is gone."""
    with contextlib.suppress(OSError):
        # At the lowest priority a process takes long to die, forever on a busy machine.
        for thread in Path(f"/proc/{leader}/task").iterdir():
            # One may end meanwhile; the others are raised all the same.
            with contextlib.suppress(OSError):
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _set_title(title: str) -> None:
    # Otherwise a long title overwrites the memory in which ps and psutil find the environment.
    os.environ["SPT_NOENV"] = "1"
    from setproctitle import setproctitle

    setproctitle(title)
    del os.environ["SPT_NOENV"]


def _run_module(
    module: str, title: str, folder: str, environment: dict[str, str | None], import_path: list[str]
) -> NoReturn:
    """Runs a module as ``python -m module`` would in ``folder``, and exits; it imports what its launcher can."""
    _set_title(title)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.chdir(folder)
    if not sys.flags.safe_path:
        sys.path[0] = folder
    sys.path += [each for each in import_path if each not in sys.path]
    sys.argv = [module]
    # Workers draw different random numbers, as new processes do; Python reseeds its own generator in a fork, numpy not.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(random.getrandbits(32))
    # Chosen anew by this environment: the folder of the server's own may be another one, or gone.
    tempfile.tempdir = None
    importlib.import_module(module).main()
    _exit(0)


def _leave_finalizers() -> None:
    """Leaves what is finalized when Python exits to the server: each fork would take torch's libraries apart."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def _exit(code: int) -> NoReturn:
    """Ends as Python does, without freeing torch's modules, which takes seconds."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ignore_fork_warning() -> None:
    """Ignores Python's warning of threads: it counts those of numeric libraries, which handle a fork themselves."""
    warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)


def serve_in_fork(link: int, lifeline: int) -> NoReturn:
    """Serves as :func:`main`, in a fork of the client's process, which has imported modules and done nothing else."""
    _set_title(__name__)
    # Its files, signal handlers and main module are the client's own.
    for descriptor in (int(file.name) for file in Path("/proc/self/fd").iterdir()):
        if descriptor > 2 and descriptor not in (link, lifeline):
            with contextlib.suppress(OSError):
                os.close(descriptor)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.modules["__main__"] = sys.modules[__name__]
    sys.stdout.flush()
    code: str | int | None = 1
    try:
        main(link, lifeline)
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.__excepthook__(*sys.exc_info())
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    _exit(code or 0)


def main(link: int, lifeline: int) -> None:
    """Serves the client that started this process.

    Args:
        link: descriptor of the socket.
        lifeline: descriptor of the lifeline's end to read.
    """
    ignore_fork_warning()
    # Imports make objects that stay: collecting garbage is a fifth of their time.
    gc.disable()
    server = ForkServer(socket.socket(fileno=link), lifeline)
    if (run_worker := server.serve()) is not None:
        run_worker()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    _exit(0)
