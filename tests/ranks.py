"""Ranks of a test's own: processes that run a function, forked from one that has made what all of them need.

That one is forked from deeppool's fork server: it imports nothing that another test has imported before.
"""

import pickle
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from deeppool.processes.fork_server_client import fork_server


class FailedRankError(Exception):
    """The traceback of a rank that failed."""


def run_ranks(
    run: Callable[..., None],
    arguments: tuple[object, ...],
    ranks: int,
    prepare: Callable[..., object] | None = None,
) -> None:
    """Calls ``run(rank, *arguments)`` in as many processes, and returns when all have ended.

    Args:
        run: a function of a module.
        arguments: of the function after the rank.
        ranks: number of processes.
        prepare: called with the arguments before, in the process that is then forked.

    Raises:
        FailedRankError: one of them failed; the others were killed.
    """
    server = fork_server()
    if server is None:
        import torch.multiprocessing as processes

        try:
            processes.start_processes(run, arguments, nprocs=ranks, start_method="spawn")
        except processes.ProcessRaisedException as error:
            raise FailedRankError(str(error)) from error
        return
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        call = Path(folder, "call")
        call.write_bytes(pickle.dumps((run, arguments, ranks, prepare)))
        parent = server.fork("tests.forking_parent", run.__name__, errors.fileno())
        with parent.stdin, parent.stdout:
            parent.stdin.write(f"{call}\n")
            parent.stdin.flush()
            code = parent.wait()
        if code != 0:
            errors.seek(0)
            raise FailedRankError(f"ended with exit code {code}: {errors.read()}")


def free_port() -> int:
    """A port on which nothing listens yet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
