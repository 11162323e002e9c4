"""Ranks of a test's own: processes that run a function, forked from one that has loaded what they need.

Each would spend seconds on importing torch otherwise. What they are forked from stays until the tests end.
"""

import multiprocessing
from collections.abc import Callable

import torch.multiprocessing

LOADED = [
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch.distributed",
    "deeppool.execution.trainer",
    "deeppool.graph.capture.capture",
    "deeppool.planning.planner",
    "tests.loaded_before_forks",
]


def run_ranks(run: Callable[..., None], arguments: tuple[object, ...], ranks: int) -> None:
    """Calls ``run(rank, *arguments)`` in as many processes, and returns when all have ended.

    Raises:
        torch.multiprocessing.ProcessRaisedException: one of them failed.
    """
    # Heeded by the first call of this process, in which the server starts.
    multiprocessing.set_forkserver_preload(LOADED)
    torch.multiprocessing.start_processes(run, arguments, nprocs=ranks, start_method="forkserver")
