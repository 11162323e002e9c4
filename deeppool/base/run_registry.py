"""Registry of this user's live runs on this machine, in whichever process: list them, and request their end.

A run has two files in a folder that only the user may enter: its description, as JSON that is rewritten with its
progress, and a FIFO that it reads. A byte in the FIFO requests its end, as its own Cancel button does. No port is
opened. The run removes both files; where its process was killed, the next call of :func:`running` removes them.
"""

import functools
import itertools
import logging
import os
import platform
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

from deeppool.base import serialization
from deeppool.base.cancellation import Cancellation, cancellable
from deeppool.base.private_files import check_private, make_private_folder
from deeppool.errors import DocumentError, RunError
from deeppool.units import format_seconds

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

INTERVAL = 1.0
"""Seconds between two writes of a run's progress."""
STOP, CLOSED = b"s", b"o"

_LOG = logging.getLogger(__name__)
_NUMBERS = itertools.count(1)
_IN_REGISTERED_RUN: ContextVar[bool] = ContextVar("in_registered_run", default=False)
"""True inside a registered run: a run that it starts is part of it."""


@dataclass(frozen=True, slots=True)
class RegisteredRun:
    """Description of a live run at one moment, which prints itself in a line."""

    KIND: ClassVar[str] = "run-under-way"

    name: str
    """Process number and number of the run in it: the argument of ``deeppool running --stop``."""
    what: str
    """Function and model: ``train vgg16``."""
    where: str
    """Notebook or command that started it."""
    folder: str
    """Working directory of its process."""
    pid: int
    """Process of the run: a notebook's kernel, or the command."""
    host: str
    boot: str
    """Boot id of the machine: where machines share a home, only the run's own machine can check its FIFO's reader."""
    started: float
    """Seconds since 1970."""
    doing: str
    """Current activity, for people."""
    progress: float
    """Fraction that is done."""

    def stop(self) -> None:
        """Requests the end of the run and its processes, and returns at once; does nothing if it has ended."""
        with suppress(OSError):
            _send(folder() / f"{self.name}.stop", STOP)

    @property
    def alive(self) -> bool:
        """Whether the run is still going."""
        return _has_reader(folder() / f"{self.name}.stop")

    @property
    def age(self) -> float:
        """Seconds since the start of the run."""
        return max(0.0, time.time() - self.started)

    def __str__(self) -> str:
        state = f"{self.doing} ({100 * self.progress:.0f} %, {format_seconds(self.age)})"
        return f"{self.name}: {self.what}: {state}, by {self.where} in {self.folder}"


def running() -> tuple[RegisteredRun, ...]:
    """Returns this user's live runs on this machine, in any notebook, script or command, oldest first.

        for run in dp.running():
            print(run)
            run.stop()

    Raises:
        RunError: others may enter the folder of the registry.
    """
    found = []
    for path in folder().glob("*.json"):
        try:
            run = serialization.read(path, RegisteredRun)
        except DocumentError:  # it has just ended, or another version wrote it
            continue
        if run.host != platform.node() or run.boot == _boot():
            if run.alive:
                found.append(run)
                continue
            if run.boot != _boot():  # on another machine that shares this home
                continue
        _remove(path.with_suffix(""))
    return tuple(sorted(found, key=lambda run: run.started))


def registered(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a function that takes ``on_progress``: :func:`running` lists its calls until they return."""

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        if _IN_REGISTERED_RUN.get():
            return function(*arguments, **options)
        what = " ".join([function.__name__, *_subject(arguments)])
        with _registration(what) as registration:
            wrapped: Any = options.get("on_progress")

            def on_progress(doing: str, share: float) -> None:
                registration.update(doing, share)
                if wrapped is not None:
                    wrapped(doing, share)

            return function(*arguments, **{**options, "on_progress": on_progress})  # type: ignore[arg-type]

    return call


class _Registration:
    """The two files of a run. If they cannot be written, the run continues unregistered."""

    def __init__(self, what: str, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._lock = threading.Lock()
        self._base: Path | None = None
        self._run = RegisteredRun(
            name=f"{os.getpid()}-{next(_NUMBERS)}",
            what=what,
            where=_where(),
            folder=str(Path.cwd()),
            pid=os.getpid(),
            host=platform.node(),
            boot=_boot(),
            started=time.time(),
            doing="starting",
            progress=0.0,
        )
        try:
            # In containers that share a home, processes of two have the same number.
            while _has_reader(folder() / f"{self._run.name}.stop"):
                self._run = replace(self._run, name=f"{os.getpid()}-{next(_NUMBERS)}")
            base = folder() / self._run.name
            _remove(base)  # left by a killed process of the same number
            os.mkfifo(f"{base}.stop", 0o600)
            # Also open for writing here, so that it does not reach its end when the last other writer closes it.
            self._fifo = os.open(f"{base}.stop", os.O_RDWR | os.O_CLOEXEC)
            self._base = base
            self._write()
        except (OSError, RunError, AttributeError) as problem:  # Windows has no FIFOs
            _LOG.warning("other processes cannot see this run: %s", problem)
        if self._base is not None:
            threading.Thread(target=self._receive, name="deeppool run registry", daemon=True).start()

    def update(self, doing: str, progress: float) -> None:
        """Sets the progress, which the registration's thread writes."""
        self._cancellation.check()
        self._run = replace(self._run, doing=doing, progress=progress)

    def close(self) -> None:
        """Removes the files."""
        with self._lock:
            if self._base is not None:
                _remove(self._base)
                self._base = None
                os.write(self._fifo, CLOSED)

    def _receive(self) -> None:
        waits = select.poll()
        waits.register(self._fifo, select.POLLIN)
        received = b""
        while received != CLOSED:
            if waits.poll(1000 * INTERVAL):
                received = os.read(self._fifo, 1)
                if received == STOP:
                    self._cancellation.request()
            with self._lock:
                if self._base is not None and self._run is not self._written:
                    self._write()
        os.close(self._fifo)

    def _write(self) -> None:
        self._written = self._run
        # Not essential: a full disk ends no training.
        with suppress(DocumentError):
            serialization.write(self._run, f"{self._base}.json")


@contextmanager
def _registration(what: str) -> Iterator[_Registration]:
    with cancellable() as cancellation:
        registration, token = _Registration(what, cancellation), _IN_REGISTERED_RUN.set(True)
        try:
            yield registration
        finally:
            _IN_REGISTERED_RUN.reset(token)
            registration.close()


def folder() -> Path:
    """Returns the folder of the registry, private to this user, the same for notebooks, terminals and remote logins.

    Raises:
        RunError: the folder cannot be made, or others may enter it.
    """
    made = _parent() / "deeppool"
    try:
        make_private_folder(made)
    except OSError as error:
        raise RunError(f"cannot make {made}: {error.strerror} (set XDG_STATE_HOME to a folder of yours)") from error
    check_private(made.resolve())
    return made


def _parent() -> Path:
    # A login session sets XDG_RUNTIME_DIR; a job outside of one finds the same folder by the user's number.
    of_login = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if Path(of_login).is_dir():
        return Path(of_login)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")


@functools.cache
def _boot() -> str:
    """Returns the boot id of the operating system's kernel, which containers share; empty where there is none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _where() -> str:
    if "ipykernel" in sys.modules:
        return Path(os.environ.get("JPY_SESSION_NAME", "a notebook")).name
    command = Path(sys.argv[0])
    if command.name == "default_worker.py":  # Ray's, whose arguments are a page of addresses
        return "deeppool cluster"
    return " ".join([command.parent.name if command.name == "__main__.py" else command.name, *sys.argv[1:]])


def _subject(arguments: tuple[Any, ...]) -> list[str]:
    """Returns the model name of a plan, graph or model, in a list that may be empty, as for several jobs."""
    first = arguments[0] if arguments else None
    named = getattr(getattr(first, "graph", first), "model", None)
    if isinstance(named, str):
        return [named]
    if first is None or isinstance(first, list | tuple):
        return []
    return [str(first) if isinstance(first, str | int) else type(first).__name__]


def _has_reader(fifo: Path) -> bool:
    try:
        _send(fifo, b"")
    except OSError:
        return False
    return True


def _send(fifo: Path, content: bytes) -> None:
    """Writes to a FIFO; raises OSError where it has no reader."""
    writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if content:
            os.write(writer, content)
    finally:
        os.close(writer)


def _remove(base: Path) -> None:
    for suffix in (".json", ".stop"):
        # Not essential: a disk that has become read-only costs no run its result.
        with suppress(OSError):
            base.with_name(base.name + suffix).unlink(missing_ok=True)
