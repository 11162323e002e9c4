"""Spinners keep the cores of all ranks awake, for the baseline of a measured run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deeppool.base.sharing import Sharing
from deeppool.collocation.helper_processes import START_SECONDS, HelperProcesses
from deeppool.processes.launcher import Launcher
from deeppool.processes.managed_process import ProcessDiedError

REST_SECONDS = 300.0
"""Time-out for a spinner to rest; at the lowest priority it may wait for the core."""


class Spinners:
    """One idle-priority spinner per core."""

    def __init__(self, processes: HelperProcesses, launcher: Launcher, ranks: int, sharing: Sharing):
        """Starts one beside each rank; they spin inside :meth:`spinning` only."""
        self._processes = processes
        in_control_group = sharing.share is not None
        for rank in range(ranks):
            # The lowest priority is the lowest only within the control group of the rank.
            run = Path(launcher.worker_spec(rank).folder).name if in_control_group else None
            processes.start(launcher, rank, "deeppool.collocation.spinner", "spinner", run=run)

    def wait_until_ready(self) -> None:
        """Returns when all have taken their priority.

        Raises:
            ProcessDiedError: one ended.
        """
        self._collect("ready", START_SECONDS)

    @contextmanager
    def spinning(self) -> Iterator[None]:
        """Keeps the cores active during the block."""
        self._processes.send("spin")
        yield
        self._processes.send("rest")
        self._collect("resting", REST_SECONDS)

    def _collect(self, event: str, timeout: float) -> None:
        for rank, answer in self._processes.collect(event, timeout).items():
            if answer["event"] == "ended":
                raise ProcessDiedError(f"spinner of rank {rank} {answer['why']}")
