"""A command under torchrun: one process speaks for all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from deeppool.cli.inputs import warn

if TYPE_CHECKING:
    from deeppool.processes.torchrun.rendezvous import WorkerGroup


@contextmanager
def torchrun_workers(*written: Path | None) -> Iterator["WorkerGroup | None"]:
    """torchrun's processes, where it started this one: those that are not rank 0 serve it in here, and exit.

    Args:
        written: files that rank 0 writes at the end.

    Raises:
        DocumentError: one of them cannot be written.
    """
    from deeppool.base.serialization import check_writable
    from deeppool.processes.torchrun import started_by_torchrun

    if not started_by_torchrun():
        yield None
        return
    from deeppool.processes.torchrun.rendezvous import rendezvous

    with rendezvous() as found:
        warn([found.exposure] if found.exposure else [])
        for path in filter(None, written):
            check_writable(path)
        yield found
