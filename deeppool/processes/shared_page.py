"""What a foreground rank and the background beside it tell each other: a page of memory that both see.

    rank → background      how it orders the background to behave in this iteration, and what it does now
    background → rank      what the background got done

No messages, no locks, no thread: each field is eight bytes that one side writes at once (a single store), and the other
reads whenever it wants to. Fields that are written one after another may for an instant be read from two iterations;
that costs at most a piece too many. A background that waits need not look again and again: a bell rings where there is
news for it.

The page is a file in the private folder of the run, and goes with it; whoever comes first makes it. Blank, it says that
the foreground is not there: all is allowed.
"""

import mmap
import os
from pathlib import Path
from typing import Any

from deeppool.base.timeline import COMPUTING
from deeppool.processes.wakeup_pipe import WakeupPipe

KINDS = ("forward", "backward", "reshard", "sync", "update")
"""Of an operator: what a trainer can be doing in a stage."""
STAGES = 5000
"""At most: a plan has no more than its model has layers, and the deepest that was planned has 1155."""
Operator = tuple[str, int]
"""Kind and stage."""

_ORDERED, _OPEN, _SHARE, _CHANGES, _DOING, _STEPS, _PIECES, _BUSY, _HELD = range(9)
_BANNED = 9 * 8
"""Where a byte per operator begins."""
_BYTES = _BANNED + len(KINDS) * STAGES
_CODES = {kind: code for code, kind in enumerate(KINDS)}


class SharedPage:
    """The page of one rank. Both sides open it; close it when its file may go too."""

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        """Opens the page of a rank, or makes it.

        Args:
            folder: private, of the run, on the rank's machine.
            rank: whose page it is.
        """
        file = os.open(Path(folder) / f"board-{rank}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, _BYTES)
            self._page = mmap.mmap(file, _BYTES)
        finally:
            os.close(file)
        self._bell = WakeupPipe(folder, rank)
        whole = memoryview(self._page)
        self._views: tuple[memoryview[Any], ...] = (
            whole,
            whole[:_BANNED].cast("q"),
            whole[:_BANNED].cast("d"),
        )
        _, self._whole_numbers, self._numbers = self._views
        self._written: frozenset[Operator] | None = None
        """Bans that this side wrote; another foreground, which was started before, may have left some."""
        self._read: tuple[int, frozenset[Operator]] = (0, frozenset())
        """Bans that this side read, and how often they had changed by then."""

    # -- by the foreground ------------------------------------------------------------------------

    def set_limits(self, *, open: bool, share: float, banned: frozenset[Operator]) -> None:  # noqa: A002  as in Orders
        """How the background shall behave until the next order.

        Args:
            open: whether it may launch at all.
            share: of the time that passes, what it may use at most.
            banned: operators of the foreground that it must not run beside.
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
        self._whole_numbers[_ORDERED] = 1
        self._bell.notify()

    def clear(self) -> None:
        """The foreground rests: the background may do as it likes."""
        self._whole_numbers[_ORDERED] = 0
        self._whole_numbers[_DOING] = 0
        self._bell.notify()

    def begin(self, kind: str, stage: int) -> None:
        """The foreground begins an operator."""
        self._whole_numbers[_DOING] = 1 + _CODES[kind] + len(KINDS) * stage
        if kind not in COMPUTING:
            self._bell.notify()

    def end(self) -> None:
        """And has ended it."""
        self._whole_numbers[_DOING] = 0

    @property
    def done(self) -> tuple[int, int, float, float]:
        """By the background so far: steps, pieces, seconds that the pieces used, seconds that it was held back."""
        counts, seconds = self._whole_numbers, self._numbers
        return counts[_STEPS], counts[_PIECES], seconds[_BUSY], seconds[_HELD]

    # -- by the background ------------------------------------------------------------------------

    @property
    def limits(self) -> tuple[bool, float, frozenset[Operator]]:
        """As :meth:`set_limits` was given them; all is allowed before the first and after they were withdrawn."""
        if not self._whole_numbers[_ORDERED]:
            return True, 1.0, frozenset()
        changes = self._whole_numbers[_CHANGES]
        if changes != self._read[0]:
            marks = self._page[_BANNED:]
            self._read = changes, frozenset(_operator(code) for code, banned in enumerate(marks) if banned)
        return bool(self._whole_numbers[_OPEN]), self._numbers[_SHARE], self._read[1]

    @property
    def doing(self) -> Operator | None:
        """The operator that the foreground is in."""
        code = self._whole_numbers[_DOING]
        return _operator(code - 1) if code else None

    def wait(self, seconds: float) -> bool:
        """Returns when there are other orders or the foreground waits, or after so many seconds; False: after those."""
        return self._bell.wait(seconds)

    def count(self, *, steps: int = 0, pieces: int = 0, busy: float = 0.0, held: float = 0.0) -> None:
        """Adds to what the background has done."""
        self._whole_numbers[_STEPS] += steps
        self._whole_numbers[_PIECES] += pieces
        self._numbers[_BUSY] += busy
        self._numbers[_HELD] += held

    def close(self) -> None:
        """Lets go of the page; the other side keeps its own."""
        for view in reversed(self._views):
            view.release()
        self._page.close()
        self._bell.close()


def _code(operator: Operator) -> int:
    kind, stage = operator
    return _CODES[kind] + len(KINDS) * stage


def _operator(code: int) -> Operator:
    stage, kind = divmod(code, len(KINDS))
    return KINDS[kind], stage
