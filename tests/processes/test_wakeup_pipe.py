"""Rings are heard once, by who waits or who waits next, and never hold up who rings."""

import threading
from pathlib import Path

from deeppool.processes.wakeup_pipe import MOST, WakeupPipe


def test_a_ring_is_heard_by_who_waits_and_by_who_waits_next(tmp_path: Path) -> None:
    foreground, background = WakeupPipe(tmp_path, 0), WakeupPipe(tmp_path, 0)
    assert not background.wait(0)
    foreground.notify()
    foreground.notify()
    assert background.wait(0)
    assert not background.wait(0)
    ringing = threading.Thread(target=foreground.notify)
    ringing.start()
    assert background.wait(60)
    ringing.join()
    for bell in (foreground, background):
        bell.close()


def test_a_bell_rings_on_though_nobody_listens(tmp_path: Path) -> None:
    foreground, background = WakeupPipe(tmp_path, 0), WakeupPipe(tmp_path, 0)
    for _ in range(2 * MOST):
        foreground.notify()
    background.close()
    foreground.notify()
    foreground.close()
    # Of a rank that starts in this one's place.
    again, another = WakeupPipe(tmp_path, 0), WakeupPipe(tmp_path, 1)
    assert not another.wait(0)
    again.notify()
    assert again.wait(0)
    for bell in (again, another):
        bell.close()
