"""The nursery's own process: it imports what it is asked to, forks children from itself, and tells who has ended.

It holds no state but modules, and no thread but the main one, so that a fork of it is as good as a new process.
"""

import atexit
import contextlib
import importlib
import json
import os
import random
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

REQUEST_BYTES = 2**16
"""Of one message, either way."""


class ForkServer:
    """Forks, and tells who has ended."""

    def __init__(self, link: socket.socket) -> None:
        """Listens to the launcher at the other end."""
        self.link = link
        self.living: dict[int, int] = {}
        """Descriptor that tells of its end → process."""
        self.open = True
        self.selector = selectors.DefaultSelector()
        self.selector.register(link, selectors.EVENT_READ)

    def serve(self) -> Callable[[], None] | None:
        """Until the launcher is gone and all children are; in a child returns what that shall run."""
        while self.open or self.living:
            for key, _ in self.selector.select():
                if key.fileobj is not self.link:
                    self._bury(key.fd)
                elif (run := self._obey()) is not None:
                    return run
        return None

    def _obey(self) -> Callable[[], None] | None:
        told, descriptors, *_ = socket.recv_fds(self.link, REQUEST_BYTES, 3)
        request = json.loads(told or b'{"retire": true}')
        if "retire" in request:
            self.open = False
            self.selector.unregister(self.link)
            for pid in [] if told else self.living.values():
                # They notice by themselves that their launcher is gone, unless they were stopped.
                kill_group(pid)
            return None
        # What cannot be imported is for the child to tell.
        with contextlib.suppress(Exception):
            importlib.import_module(request["module"])
        if "number" not in request:
            return None
        pid = os.fork()
        if pid == 0:
            self._leave(descriptors)
            del request["number"]
            return lambda: _become(**request)
        for descriptor in descriptors:
            os.close(descriptor)
        # Here as in the child: whoever comes first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        end = os.pidfd_open(pid)
        self.living[end] = pid
        self.selector.register(end, selectors.EVENT_READ)
        self._tell(number=request["number"], pid=pid)
        return None

    def _bury(self, end: int) -> None:
        """What a child started dies with it, before anybody else can have the number of its group."""
        pid = self.living.pop(end)
        self.selector.unregister(end)
        os.close(end)
        kill_group(pid)
        _, status = os.waitpid(pid, 0)
        self._tell(pid=pid, code=os.waitstatus_to_exitcode(status))

    def _tell(self, **message: int) -> None:
        with contextlib.suppress(OSError):
            self.link.send(json.dumps(message).encode())

    def _leave(self, standard: Sequence[int]) -> None:
        """A child has nothing of the nursery's but its modules."""
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        self.selector.close()
        self.link.close()
        for end in self.living:
            os.close(end)
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)


def kill_group(leader: int) -> None:
    """Ends a process and all that it started; nothing happens where they are gone."""
    with contextlib.suppress(OSError):
        # At the lowest priority even dying takes long, on a busy machine for ever.
        for thread in Path(f"/proc/{leader}/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def become_fork_server(link: socket.socket, title: str) -> NoReturn:
    """What a fork of a process with modules, but without threads, does to fork children for that process."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    with Path(os.devnull).open("r+b") as nothing:
        for standard in range(3):
            os.dup2(nothing.fileno(), standard)
    _entitle(title)
    run = ForkServer(link).serve()
    if run is not None:
        run()
    os._exit(0)


def _entitle(title: str) -> None:
    # Or a title would go where others look for the environment of a process.
    os.environ["SPT_NOENV"] = "1"
    from setproctitle import setproctitle

    setproctitle(title)
    del os.environ["SPT_NOENV"]


def _become(
    module: str, title: str, folder: str, arguments: Sequence[str], environment: dict[str, str | None]
) -> NoReturn:
    """What ``python -m module`` would be in a folder."""
    _entitle(title)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.chdir(folder)
    if not sys.flags.safe_path:
        sys.path[0] = folder
    sys.argv = [module, *arguments]
    # Forks draw different numbers, as new processes do; Python sees to its own module, numpy does not.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(random.getrandbits(32))
    importlib.import_module(module).main()
    # As Python ends, but for taking torch's modules apart, which takes seconds.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main() -> None:
    """Serves one launcher."""
    # Python counts the threads of the numeric libraries, which know what to do in a fork.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
    cradle = ForkServer(socket.socket(fileno=int(sys.argv[1])))
    run = cradle.serve()
    if run is not None:
        run()


if __name__ == "__main__":
    main()
