"""Processes that train the same model on other cores while one core is measured, as the ranks of a plan do.

Cores share memory bandwidth, caches and the power of a processor: layers take longer than alone when other cores
train, layers that stream their weights most. All ranks run each measured iteration at the same time.
"""

import contextlib
from collections.abc import Iterator

from deeppool.base.number_checks import whole_number
from deeppool.device.cpu import on_cores, usable_cores
from deeppool.device.kinds import find_kind
from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.models.workloads import save_model
from deeppool.processes.managed_process import ManagedProcess, receive
from deeppool.processes.rank_group import private_folder

START_TIMEOUT, ITERATION_TIMEOUT = 300.0, 600.0


def check_ranks(ranks: int, device: str, threads: int) -> None:
    """Checks that a number of ranks can train at the same time.

    Raises:
        InvalidValueError: fewer than one rank, more ranks than cores, several ranks of several threads each, or several
            ranks on GPUs, which share nothing.
    """
    whole_number("ranks", ranks)
    if ranks > 1 and not find_kind(device).on_cores:
        raise InvalidValueError(f"ranks are cores that train at the same time, got device {device} (leave ranks out)")
    if ranks > len(usable_cores()):
        raise InvalidValueError(
            f"{ranks} ranks need a core each, and this process may use {len(usable_cores())} (give fewer)"
        )
    if ranks > 1 and threads > 1:
        raise InvalidValueError(f"ranks have a core each, got {threads} threads (leave ranks or threads out)")


class ConcurrentRanks:
    """A process on each of the other cores, as a context manager that ends them."""

    def __init__(self, captured: CapturedModel, precision: Precision, others: int) -> None:
        """Starts the processes and waits until each has loaded the model.

        Raises:
            RunError: a process died, for example for lack of memory.
        """
        cores = usable_cores()
        self._core = cores[0]
        graph = captured.graph
        with contextlib.ExitStack() as ending, private_folder() as folder:
            model = save_model(captured.source, folder)
            self._others = [
                ending.enter_context(ManagedProcess("deeppool.profiling.measure.concurrent_rank", f"rank {rank}"))
                for rank in range(1, others + 1)
            ]
            for process, core in zip(self._others, cores[1:], strict=False):
                process.send(
                    "setup",
                    model=model,
                    folder=str(folder),
                    core=core,
                    precision=precision,
                    granularity=graph.granularity,
                    inputs=[[given.name, given.shape, given.dtype] for given in graph.inputs],
                    fingerprint=graph.fingerprint,
                )
            for process in self._others:
                receive(process, START_TIMEOUT)
            self._ending = ending.pop_all()

    @contextlib.contextmanager
    def iteration(self, batch: int) -> Iterator[None]:
        """Runs an iteration on all other cores during the block, which runs on the first core."""
        with self._together("iterate", batch=batch):
            yield

    def update(self) -> contextlib.AbstractContextManager[None]:
        """Updates the parameters on all other cores during the block, which runs on the first core."""
        return self._together("update")

    @contextlib.contextmanager
    def _together(self, command: str, **fields: int) -> Iterator[None]:
        for process in self._others:
            process.send(command, **fields)
        with on_cores({self._core}):
            yield
        for process in self._others:
            receive(process, ITERATION_TIMEOUT)

    def __enter__(self) -> "ConcurrentRanks":
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()
