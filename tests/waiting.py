"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable

TIMEOUT = 240
"""Seconds for what takes a moment on an idle machine."""


def wait_until(
    condition: Callable[[], object], seconds: float = TIMEOUT, what: object = "it", *, pause: float = 0.05
) -> None:
    """Looks whether something is so every ``pause`` seconds, and fails if it is not within some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(pause)
