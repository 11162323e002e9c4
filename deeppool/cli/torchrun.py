"""A command under torchrun: one process speaks for all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deeppool.cli.inputs import warn

if TYPE_CHECKING:
    from deeppool.processes.torchrun.rendezvous import WorkerGroup


@contextmanager
def torchrun_workers() -> Iterator["WorkerGroup | None"]:
    """torchrun's processes, where it started this one: those that are not rank 0 serve it in here, and exit."""
    from deeppool.processes.torchrun import started_by_torchrun

    if not started_by_torchrun():
        yield None
        return
    from deeppool.processes.torchrun.rendezvous import rendezvous

    with rendezvous() as found:
        warn([found.exposure] if found.exposure else [])
        yield found
