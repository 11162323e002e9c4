"""Notifications wake the waiting reader or the next one, once, and never block the writer."""

import threading
from pathlib import Path

from deeppool.processes.wakeup_pipe import PIPE_BYTES, WakeupPipe


def test_a_notification_wakes_the_waiting_reader_or_the_next_one(tmp_path: Path) -> None:
    foreground, background = WakeupPipe(tmp_path, 0), WakeupPipe(tmp_path, 0)
    assert not background.wait(0)
    foreground.notify()
    foreground.notify()
    assert background.wait(0)
    assert not background.wait(0)
    notifying = threading.Thread(target=foreground.notify)
    notifying.start()
    assert background.wait(300)
    notifying.join()
    for pipe in (foreground, background):
        pipe.close()


def test_notifications_without_a_reader_do_not_block(tmp_path: Path) -> None:
    foreground, background = WakeupPipe(tmp_path, 0), WakeupPipe(tmp_path, 0)
    for _ in range(2 * PIPE_BYTES):
        foreground.notify()
    background.close()
    foreground.notify()
    foreground.close()
    # A rank restarted under the same number.
    again, another = WakeupPipe(tmp_path, 0), WakeupPipe(tmp_path, 1)
    assert not another.wait(0)
    again.notify()
    assert again.wait(0)
    for pipe in (again, another):
        pipe.close()
