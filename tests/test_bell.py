"""A bell between two processes' worth of one: rings are heard once, by who waits or waits next."""

import threading
import time
from pathlib import Path

from deeppool.bell import MOST, Bell


def test_a_ring_is_heard_by_who_waits_and_by_who_waits_next(tmp_path: Path) -> None:
    foreground, background = Bell(tmp_path, 0), Bell(tmp_path, 0)
    assert not background.wait(0)
    foreground.ring()
    foreground.ring()
    assert background.wait(0)
    assert not background.wait(0)
    threading.Timer(0.05, foreground.ring).start()
    began = time.monotonic()
    assert background.wait(60)
    assert time.monotonic() - began < 60
    for bell in (foreground, background):
        bell.close()


def test_a_bell_rings_on_though_nobody_listens(tmp_path: Path) -> None:
    foreground, background = Bell(tmp_path, 0), Bell(tmp_path, 0)
    for _ in range(2 * MOST):
        foreground.ring()
    background.close()
    foreground.ring()
    foreground.close()
    # Of a rank that starts in this one's place.
    again = Bell(tmp_path, 0)
    assert not Bell(tmp_path, 1).wait(0)
    again.ring()
    assert again.wait(0)
