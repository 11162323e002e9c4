"""Runs of this user that are under way on this machine, whichever process they are in: seen, and asked to end.

Each has two files in a folder that only the user may enter: what it is, as JSON that is written anew as it gets on, and
a FIFO that it reads. A byte in the FIFO asks it to end, as its own Cancel button does. Nothing listens on a port. Both
files go with the run; of a process that was killed they are left without a reader, and whoever looks next removes them.
"""

import functools
import itertools
import json
import logging
import os
import platform
import select
import stat
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
from deeppool.base.cancellation import Cancellation, governing
from deeppool.errors import DocumentError, RunError
from deeppool.units import format_seconds

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

INTERVAL = 1.0
"""Seconds between two writings of how far a run is."""
STOP, OVER = b"s", b"o"

_LOG = logging.getLogger(__name__)
_NUMBERS = itertools.count(1)
_ANNOUNCED: ContextVar[bool] = ContextVar("announced", default=False)
"""A run that a run starts is part of it."""


@dataclass(frozen=True, slots=True)
class RegisteredRun:
    """A run as it stood a moment ago. It prints itself in a line."""

    KIND: ClassVar[str] = "run-under-way"

    name: str
    """For ``deeppool running --stop``: the process, and which of its runs."""
    what: str
    """It does: ``train vgg16``."""
    where: str
    """The notebook, or the command."""
    folder: str
    """That its process works in."""
    pid: int
    """Of the process that holds it: a notebook's kernel, or the command."""
    host: str
    boot: str
    """Of the machine's kernel: where homes are shared by machines, a FIFO's reader is known on its own one only."""
    started: float
    """Seconds since 1970."""
    doing: str
    """In words."""
    progress: float
    """The share that is done."""

    def stop(self) -> None:
        """Asks it to end, with every process of it; returns at once. One that has ended is none to ask."""
        with suppress(OSError):
            _send(folder() / f"{self.name}.stop", STOP)

    @property
    def alive(self) -> bool:
        """Whether it is still under way."""
        return _is_read(folder() / f"{self.name}.stop")

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return max(0.0, time.time() - self.started)

    def __str__(self) -> str:
        told = f"{self.doing} ({100 * self.progress:.0f} %, {format_seconds(self.age)})"
        return f"{self.name}: {self.what}: {told}, by {self.where} in {self.folder}"


def running() -> tuple[RegisteredRun, ...]:
    """Runs of this user that are under way on this machine, in any notebook, script or command; the oldest first.

        for run in dp.running():
            print(run)
            run.stop()

    Raises:
        RunError: the folder in which they are told of is not this user's alone.
    """
    found = []
    for path in folder().glob("*.json"):
        try:
            told = serialization.read(path, RegisteredRun)
        except DocumentError:  # it has ended in this moment, or another deeppool wrote it
            continue
        if told.host != platform.node() or told.boot == _boot():
            if told.alive:
                found.append(told)
                continue
            if told.boot != _boot():  # on another machine that shares this home
                continue
        _remove(path.with_suffix(""))
    return tuple(sorted(found, key=lambda run: run.started))


def registered(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A call that takes ``on_progress`` is seen by :func:`running` until it returns, and can be asked to end."""

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        if _ANNOUNCED.get():
            return function(*arguments, **options)
        what = " ".join([function.__name__, *_subject(arguments)])
        with _announcing(what) as announcement:
            told: Any = options.get("on_progress")

            def on_progress(doing: str, share: float) -> None:
                announcement.note(doing, share)
                if told is not None:
                    told(doing, share)

            return function(*arguments, **{**options, "on_progress": on_progress})  # type: ignore[arg-type]

    return call


class _Announcement:
    """The run's end of its two files. Without a folder to write to, the run goes on unseen."""

    def __init__(self, what: str, cancellation: Cancellation) -> None:
        self._cancellation = cancellation
        self._changing = threading.Lock()
        self._base: Path | None = None
        self._told = RegisteredRun(
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
            base = folder() / self._told.name
            _remove(base)  # of a killed process that had this one's number
            os.mkfifo(f"{base}.stop", 0o600)
            # Written to by ourselves, too: so it never comes to an end while nobody else has it open.
            self._fifo = os.open(f"{base}.stop", os.O_RDWR | os.O_CLOEXEC)
            self._base = base
            self._write()
        except (OSError, RunError, AttributeError) as problem:  # Windows has no FIFOs
            _LOG.warning("other processes cannot see this run: %s", problem)
        if self._base is not None:
            threading.Thread(target=self._listen, name="deeppool stop", daemon=True).start()

    def note(self, doing: str, progress: float) -> None:
        """How far it is; the thread that listens writes it."""
        self._cancellation.check()
        self._told = replace(self._told, doing=doing, progress=progress)

    def close(self) -> None:
        """It has ended."""
        with self._changing:
            if self._base is not None:
                _remove(self._base)
                self._base = None
                os.write(self._fifo, OVER)

    def _listen(self) -> None:
        waits = select.poll()
        waits.register(self._fifo, select.POLLIN)
        heard = b""
        while heard != OVER:
            if waits.poll(1000 * INTERVAL):
                heard = os.read(self._fifo, 1)
                if heard == STOP:
                    self._cancellation.ask()
            with self._changing:
                if self._base is not None and self._told is not self._written:
                    self._write()
        os.close(self._fifo)

    def _write(self) -> None:
        self._written = self._told
        # No matter of life: not on disk when the machine stops, and a full disk ends no training.
        with suppress(OSError):
            written = Path(f"{self._base}.tmp")
            written.write_text(json.dumps(serialization.to_json(self._told)), encoding="utf-8")
            os.replace(written, f"{self._base}.json")


@contextmanager
def _announcing(what: str) -> Iterator[_Announcement]:
    with governing() as cancellation:
        announcement, token = _Announcement(what, cancellation), _ANNOUNCED.set(True)
        try:
            yield announcement
        finally:
            _ANNOUNCED.reset(token)
            announcement.close()


def folder() -> Path:
    """Where runs are told of: of this user alone, and the same for a notebook, a terminal and a remote login.

    Raises:
        RunError: it cannot be made, or others may enter it.
    """
    made = _parent() / "deeppool"
    try:
        made.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
        found = made.stat()
    except OSError as error:
        raise RunError(f"cannot make {made}: {error.strerror} (set XDG_STATE_HOME to a folder of yours)") from error
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & (stat.S_IRWXG | stat.S_IRWXO):
        raise RunError(
            f"{made} is of user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}, runs are told of in a folder "
            f"of user {os.getuid()} with mode 700 (chmod 700 it, or set XDG_STATE_HOME to a folder of yours)"
        )
    return made


def _parent() -> Path:
    # A login has the first one, and a job that outlives it or comes from elsewhere finds it by its number.
    of_login = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    if Path(of_login).is_dir():
        return Path(of_login)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")


@functools.cache
def _boot() -> str:
    """Of the running kernel of the operating system, which containers share; empty where it tells none."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _where() -> str:
    if "ipykernel" in sys.modules:
        return Path(os.environ.get("JPY_SESSION_NAME", "a notebook")).name
    command = Path(sys.argv[0])
    return " ".join([command.parent.name if command.name == "__main__.py" else command.name, *sys.argv[1:]])


def _subject(arguments: tuple[Any, ...]) -> list[str]:
    """What a plan, a graph or a model is called."""
    first = arguments[0] if arguments else None
    named = getattr(getattr(first, "graph", first), "model", None)
    if isinstance(named, str):
        return [named]
    return [] if first is None else [first if isinstance(first, str) else type(first).__name__]


def _is_read(fifo: Path) -> bool:
    try:
        _send(fifo, b"")
    except OSError:
        return False
    return True


def _send(fifo: Path, told: bytes) -> None:
    """Raises OSError where nobody reads."""
    writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if told:
            os.write(writer, told)
    finally:
        os.close(writer)


def _remove(base: Path) -> None:
    for suffix in (".json", ".stop", ".tmp"):
        base.with_name(base.name + suffix).unlink(missing_ok=True)
