"""Waits for a change of a number in shared memory, without polling: the futex of Linux."""

import ctypes
import platform
import sys
import time

import numpy as np
from numpy.typing import NDArray

_SYSCALL = {"x86_64": 202, "aarch64": 98}.get(platform.machine()) if sys.platform == "linux" else None
_WAIT, _WAKE = 0, 1
_POLL = 0.0005
"""Seconds between two looks where there is no futex."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """A 32-bit number that other processes change."""

    def __init__(self, number: NDArray[np.int32]) -> None:
        """Takes an array of one element in shared memory."""
        self._number = number
        self._address = ctypes.c_void_p(number.ctypes.data)
        self._call = ctypes.CDLL(None, use_errno=True).syscall if _SYSCALL else None

    def value(self) -> int:
        """Returns the number."""
        return int(self._number[0])

    def notify(self) -> None:
        """Changes the number, which ends the waits of all that :meth:`wake` then wakes.

        Two changes at once may count as one: whoever waits has seen the number before both.
        """
        # A signed number that overflows would warn.
        self._number[0] = (int(self._number[0]) + 1) & 0x3FFFFFFF

    def wake(self) -> None:
        """Wakes all that wait; without the lock, so that they do not wait for it at once."""
        if self._call is not None:
            self._call(_SYSCALL, self._address, _WAKE, 0x7FFFFFFF, None, None, 0)

    def wait(self, seen: int, timeout: float) -> None:
        """Returns when the number may differ from the one seen, or after a time in seconds."""
        if self._call is not None:
            limit = _Timespec(int(timeout), int(timeout % 1 * 1e9))
            self._call(_SYSCALL, self._address, _WAIT, seen, ctypes.byref(limit), None, 0)
            return
        end = time.monotonic() + timeout
        while self._number[0] == seen and (left := end - time.monotonic()) > 0:
            time.sleep(min(_POLL, left))
