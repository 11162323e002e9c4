"""Makes what ranks of a test share, and forks them: see :mod:`tests.ranks`."""

import atexit
import gc
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch


def main() -> None:
    """Forks the ranks of a call in a file, waits until all have ended, and kills the others when one fails."""
    # Nobody reads standard output.
    os.dup2(2, 1)
    # Threads for tensors would be missing in a fork.
    torch.set_num_threads(1)
    run, arguments, ranks, prepare = pickle.loads(Path(sys.stdin.readline().strip()).read_bytes())
    if prepare is not None:
        prepare(*arguments)
    gc.collect()
    gc.freeze()
    running = {_fork(run, rank, arguments) for rank in range(ranks)}
    failed = False
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status and not failed:
            failed = True
            for other in running:
                os.kill(other, signal.SIGKILL)
    sys.exit(failed)


def _fork(run: Callable[..., None], rank: int, arguments: tuple[object, ...]) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        run(rank, *arguments)
        atexit._run_exitfuncs()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
