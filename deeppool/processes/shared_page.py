"""Shared page: memory in which a background reads its limits and the current operator of the rank beside it.

No messages, no locks, no thread: each field is eight bytes that one side writes at once (a single store) and the other
reads at any time. Fields written one after another may for an instant be read from two iterations, which costs at most
one piece too many. A waiting background does not poll: a :class:`WakeupPipe` wakes it.

The page is a file in memory (/dev/shm) or else in the private folder of the run, created by whichever side comes first
and removed with that folder. An empty page means that there is no foreground: everything is allowed.
"""

import mmap
import os
from pathlib import Path
from typing import Any

from deeppool.base.timeline import COMPUTING
from deeppool.errors import RunError
from deeppool.processes.wakeup_pipe import WakeupPipe

KINDS = ("forward", "backward", "reshard", "sync", "update")
"""Kinds of operators of a stage."""
STAGES = 5000
"""Maximum number of stages: a plan has at most as many as its model has layers; the deepest planned one has 1155."""
SHARED_MEMORY = Path("/dev/shm")
"""File system in memory, on Linux."""
Operator = tuple[str, int]
"""Kind and stage."""

_LIMITED, _OPEN, _SHARE, _CHANGES, _DOING = range(5)
_BANNED = 5 * 8
"""Offset of the bytes per operator."""
_BYTES = _BANNED + len(KINDS) * STAGES
_CODES = {kind: code for code, kind in enumerate(KINDS)}


class SharedPage:
    """Page of one rank, opened by both sides."""

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        """Opens the page of a rank, or creates it.

        Args:
            folder: private folder of the run, on the rank's machine.
            rank: number of the rank.

        Raises:
            RunError: there is no room for it.
        """
        path = _page_folder(Path(folder)) / f"page-{rank}"
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _allocate(file)
            self._page = mmap.mmap(file, _BYTES)
        except OSError as error:
            room = path.parents[1]
            raise RunError(f"no {_BYTES} bytes for {path}: {error.strerror} (make room in {room})") from error
        finally:
            os.close(file)
        self._wakeup = WakeupPipe(folder, rank)
        whole = memoryview(self._page)
        self._views: tuple[memoryview[Any], ...] = (
            whole,
            whole[:_BANNED].cast("q"),
            whole[:_BANNED].cast("d"),
        )
        _, self._whole_numbers, self._numbers = self._views
        self._written: frozenset[Operator] | None = None
        """Banned operators that this side wrote; an earlier foreground may have left others."""
        self._read: tuple[int, frozenset[Operator]] = (0, frozenset())
        """Number of changes of the banned operators when this side read them, and those operators."""

    # -- by the foreground ------------------------------------------------------------------------

    def set_limits(self, *, open: bool, share: float, banned: frozenset[Operator]) -> None:  # noqa: A002  as in BackgroundLimits
        """Sets the limits of the background until the next call.

        Args:
            open: whether it may launch pieces.
            share: maximum share of the time that it may use.
            banned: operators of the foreground during which it must not run.
        """
        if banned != self._written:
            marks = bytearray(_BYTES - _BANNED)
            for operator in banned:
                marks[_code(operator)] = 1
            self._page[_BANNED:] = bytes(marks)
            self._written = banned
            self._whole_numbers[_CHANGES] += 1
        self._numbers[_SHARE] = share
        self._whole_numbers[_OPEN] = open
        self._whole_numbers[_LIMITED] = 1
        self._wakeup.notify()

    def clear(self) -> None:
        """Removes all limits: the foreground is idle."""
        self._whole_numbers[_LIMITED] = 0
        self._whole_numbers[_DOING] = 0
        self._wakeup.notify()

    def begin(self, kind: str, stage: int) -> None:
        """Records that the foreground begins an operator."""
        self._whole_numbers[_DOING] = 1 + _CODES[kind] + len(KINDS) * stage
        if kind not in COMPUTING:
            self._wakeup.notify()

    def end(self) -> None:
        """Records that the foreground has ended its operator."""
        self._whole_numbers[_DOING] = 0

    # -- by the background ------------------------------------------------------------------------

    @property
    def limits(self) -> tuple[bool, float, frozenset[Operator]]:
        """Returns the arguments of :meth:`set_limits`; no limits before its first call and after :meth:`clear`."""
        if not self._whole_numbers[_LIMITED]:
            return True, 1.0, frozenset()
        changes = self._whole_numbers[_CHANGES]
        if changes != self._read[0]:
            marks = self._page[_BANNED:]
            self._read = changes, frozenset(_operator(code) for code, banned in enumerate(marks) if banned)
        return bool(self._whole_numbers[_OPEN]), self._numbers[_SHARE], self._read[1]

    @property
    def doing(self) -> Operator | None:
        """Returns the current operator of the foreground, or None between operators."""
        code = self._whole_numbers[_DOING]
        return _operator(code - 1) if code else None

    def wait(self, seconds: float) -> bool:
        """Waits for new limits or for a waiting foreground; returns False if neither comes in time."""
        return self._wakeup.wait(seconds)

    def close(self) -> None:
        """Closes this side of the page."""
        for view in reversed(self._views):
            view.release()
        self._page.close()
        self._wakeup.close()


def _allocate(file: int) -> None:
    """Gives the file its size, and memory or blocks of its own: a write without them would end the process (SIGBUS)."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, _BYTES)
    else:
        os.ftruncate(file, _BYTES)


def _page_folder(folder: Path) -> Path:
    in_memory = SHARED_MEMORY / folder.name
    return in_memory if in_memory.is_dir() else folder


def _code(operator: Operator) -> int:
    kind, stage = operator
    return _CODES[kind] + len(KINDS) * stage


def _operator(code: int) -> Operator:
    stage, kind = divmod(code, len(KINDS))
    return KINDS[kind], stage
