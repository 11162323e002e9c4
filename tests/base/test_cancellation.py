"""A wait that was interrupted because its own process was stopped goes on."""

import queue
from typing import Any

import pytest

from deeppool.base.cancellation import Cancellation, wait


class Resumed(queue.SimpleQueue):
    """Inbox of a process that was stopped while it waited: on continuing, the time is over, its item still to come."""

    def __init__(self, waits: int) -> None:
        self.waits = waits

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.waits -= 1
        if self.waits >= 0:
            raise queue.Empty
        return "the item"


@pytest.mark.parametrize("cancellable", [False, True])
def test_a_stop_of_the_waiting_process_does_not_use_up_its_timeout(cancellable: bool) -> None:
    with Cancellation().applied() if cancellable else pytest.MonkeyPatch.context():
        assert wait(Resumed(waits=1), 60.0) == "the item"
        with pytest.raises(queue.Empty):
            wait(Resumed(waits=60), 60.0)
