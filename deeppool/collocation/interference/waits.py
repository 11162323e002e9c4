"""Measures the work of a background at the lowest priority while a foreground on its core waits, by length of wait.

A ResNet-50 trains and rests after some layers, for as long as a wait is; a ResNet-18 trains beside it. A background
that runs only briefly has lost its caches to the foreground, and starts late.
"""

import contextlib
from collections.abc import Callable, Sequence

import numpy as np

from deeppool.base.number_checks import real_number
from deeppool.collocation.interference.cpu_bench import run, running, start
from deeppool.device.cpu import usable_cores
from deeppool.errors import InvalidValueError
from deeppool.processes.managed_process import ManagedProcess

WAITS = (2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 2e-2)
"""Seconds of a wait."""
WORK, MOST_WORK = 5, 5e-2
"""Work before a wait: multiple of its length, and most seconds."""
WORKER = "deeppool.collocation.interference.training_worker"
FOREGROUND, BACKGROUND = {"model": "resnet50", "batch": 8}, {"model": "resnet18", "batch": 4}


def check_waits(waits: Sequence[float]) -> tuple[float, ...]:
    """Returns the waits in ascending order, each once.

    Raises:
        InvalidValueError: a wait that is not positive.
    """
    found = sorted({real_number("waits", seconds) for seconds in waits})
    if not min(found, default=1) > 0:
        raise InvalidValueError(f"waits must be positive numbers of seconds, got {list(waits)} (for example 0.001)")
    return tuple(found)


def measure_waits(
    waits: Sequence[float], seconds: float, rounds: int, report: Callable[[float], None]
) -> tuple[float, ...]:
    """Measures every length in turn, several times, each after the background alone.

    Args:
        waits: seconds.
        seconds: duration for which the background trains beside each length in each round, and half as long alone.
        rounds: number of rounds, whose median counts.
        report: called with the share that is done.

    Returns:
        Per length the steps that the background did in the time in which the foreground used no CPU, as a part of
        those that it does in as much time alone; at most 1.

    Raises:
        RunError: a process died.
    """
    found = np.empty((rounds, len(waits)))
    with contextlib.ExitStack() as ending:
        rests = [(wait, min(WORK * wait, MOST_WORK)) for wait in waits]
        foreground, _ = start(
            ending, WORKER, "training that waits", usable_cores()[0], "normal", **FOREGROUND, rests=rests
        )
        background = start_background(ending, usable_cores()[0])
        for number in range(rounds):
            for rest in range(len(waits)):
                found[number, rest] = _harvest_of_idle(foreground, background, rest, seconds)
                report((number * len(waits) + rest + 1) / found.size)
    return tuple(float(min(1.0, one)) for one in np.median(found, axis=0))


def _harvest_of_idle(foreground: ManagedProcess, background: ManagedProcess, rest: int, seconds: float) -> float:
    (alone,) = run([background], 0, seconds / 2)
    with running([foreground], rest) as (waiting,):
        # It ends with a step, however long the last one takes.
        (beside,) = run([background], 0, seconds)
    rates = [done["count"] / done["seconds"] for done in (beside, alone)]
    return float(rates[0] / rates[1] / (1 - waiting["cpu"] / waiting["seconds"]))


def start_background(ending: contextlib.ExitStack, core: int) -> ManagedProcess:
    """Starts a training at the lowest priority, which does not rest by itself."""
    rests = [(0.0, 0.0)]
    return start(ending, WORKER, "training at the lowest priority", core, "lowest", **BACKGROUND, rests=rests)[0]
