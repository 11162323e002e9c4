"""How much longer do a thread's short calls of torch take beside another thread of the process? On one CPU, no GPU.

The calls are those of a foreground that launches an iteration after a wait; the other thread launches too, or polls.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable
from statistics import median

import torch

CALLS = 150
ITERATIONS = 300
INTERVALS = (5e-3, 1e-4, 5e-6)
"""Seconds after which the interpreter takes its lock from a thread, if that does not give it up; Python's is first."""


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.set_num_threads(1)
    print("switch interval | alone | beside launches | beside a poll every 0.1 ms | every 0.25 ms | every 1 ms")
    others: list[Callable[[], None] | None] = [None, launch, *(lambda s=s: poll(s) for s in (1e-4, 2.5e-4, 1e-3))]
    for interval in INTERVALS:
        sys.setswitchinterval(interval)
        shown = [f"{1e3 * median(iterations(other)):.2f} ms" for other in others]
        print(f"{1e3 * interval:g} ms | {' | '.join(shown)}", flush=True)


def iterations(other: Callable[[], None] | None) -> list[float]:
    """Seconds of the calls of each iteration, beside a thread that repeats ``other``."""
    stop = threading.Event()

    def repeat() -> None:
        while other is not None and not stop.is_set():
            other()

    thread = threading.Thread(target=repeat)
    thread.start()
    own = torch.zeros(1)
    found = []
    for _ in range(ITERATIONS):
        time.sleep(1e-3)
        started = time.perf_counter()
        for _ in range(CALLS):
            own.add_(1)
        found.append(time.perf_counter() - started)
    stop.set()
    thread.join()
    return found


THEIRS = torch.zeros(1)


def launch() -> None:
    """A piece: some calls that give up the lock, and the Python between them."""
    for _ in range(40):
        THEIRS.add_(1)
        _python(30)


def poll(seconds: float) -> None:
    """A closed gate."""
    for _ in range(3):
        THEIRS.add_(1)
    _python(150)
    time.sleep(seconds)


def _python(steps: int) -> None:
    number = 0
    for step in range(steps):
        number += step


if __name__ == "__main__":
    main()
