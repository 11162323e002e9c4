"""Other cores that train the same model while one is measured, as the ranks of a plan do.

Cores share memory, caches and the power of a processor: beside others that train, a layer takes longer than alone, and
one that streams its weights more so than one that computes. The others do each iteration at the same time as the one
that is measured.
"""

import contextlib
from collections.abc import Iterator

from deeppool.device.cpu import on_cores, usable_cores
from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.models.workloads import save_model
from deeppool.processes.fork_server_client import fork_server
from deeppool.processes.managed_process import ManagedProcess, receive
from deeppool.processes.rank_group import private_folder

START_SECONDS, ITERATION_SECONDS = 300.0, 600.0


def check_ranks(ranks: int, device: str, threads: int) -> None:
    """So many can train at the same time.

    Raises:
        InvalidValueError: fewer than one, more than cores, or several of more than a thread each, or where ranks are
            GPUs, which share nothing.
    """
    if ranks < 1:
        raise InvalidValueError(f"ranks must be at least 1, got {ranks}")
    if ranks > 1 and device != "cpu":
        raise InvalidValueError(f"ranks are cores that train at the same time, got device {device} (leave ranks out)")
    if ranks > len(usable_cores()):
        raise InvalidValueError(
            f"{ranks} ranks need a core each, and this process may use {len(usable_cores())} (give fewer)"
        )
    if ranks > 1 and threads > 1:
        raise InvalidValueError(f"ranks have a core each, got {threads} threads (leave ranks or threads out)")


class ConcurrentRanks:
    """A process on each of the other cores. A context manager that ends them."""

    def __init__(self, captured: CapturedModel, precision: Precision, others: int) -> None:
        """Starts them; they have the model when this returns.

        Raises:
            RunError: one has died, for example for lack of memory.
        """
        cores = usable_cores()
        self._core = cores[0]
        graph = captured.graph
        with contextlib.ExitStack() as ending, private_folder() as folder:
            model = save_model(captured.source, folder)
            self._others = [
                ending.enter_context(
                    ManagedProcess(
                        "deeppool.profiling.measure.concurrent_rank", f"rank {rank}", fork_server=fork_server()
                    )
                )
                for rank in range(1, others + 1)
            ]
            for child, core in zip(self._others, cores[1:], strict=False):
                child.send(
                    "setup",
                    model=model,
                    folder=str(folder),
                    core=core,
                    precision=precision,
                    granularity=graph.granularity,
                    inputs=[[given.name, given.shape, given.dtype] for given in graph.inputs],
                    fingerprint=graph.fingerprint,
                )
            for child in self._others:
                receive(child, START_SECONDS)
            self._ending = ending.pop_all()

    @contextlib.contextmanager
    def iteration(self, batch: int) -> Iterator[None]:
        """Others begin an iteration with the block, which is on a core of its own, and end it with it or later."""
        for child in self._others:
            child.send("iterate", batch=batch)
        with on_cores({self._core}):
            yield
        for child in self._others:
            receive(child, ITERATION_SECONDS)

    def __enter__(self) -> "ConcurrentRanks":
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()
