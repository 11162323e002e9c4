"""Follows a run, also while it reports nothing: seconds pass on the page from the start to the end."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from deeppool.runs.handle import RunHandle

_LOG = logging.getLogger(__name__)
SECOND = 1.0


def follow(run: RunHandle[Any], draw: Callable[[], None]) -> None:
    """Calls ``draw`` after every change of a run, in its thread, and in another one each second until it ends."""
    ended = threading.Event()

    def note_end() -> None:
        if run.state != "running":
            ended.set()

    def tick() -> None:
        while not ended.wait(SECOND):
            if run.state != "running":
                return
            try:
                draw()
            except Exception:  # as RunHandle.watch: a run does not end because it cannot be shown
                _LOG.exception("%s is no longer shown", run.name)
                return

    run.watch(draw)
    run.watch(note_end)
    threading.Thread(target=tick, name="deeppool tick", daemon=True).start()
