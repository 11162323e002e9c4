"""Injected load imbalance: delays of ranks before they compute, in a run of any kind."""

import time
from collections.abc import Callable
from pathlib import Path

from deeppool.base.pickling import load_pickled, save_pickled
from deeppool.collectives.partial.load_imbalance import Delays

LAUNCHED = "load_imbalance.launched"
"""File of a run's folder that holds the delays."""


def save_delays(delays: Delays, folder: Path) -> None:
    """Saves delays for the ranks of this run; ``folder`` must be private, as its writers can run code."""
    save_pickled(delays, "load_imbalance", folder / LAUNCHED)


def load_delay(folder: Path, rank: int, update: Callable[[], int]) -> Callable[[], None]:
    """Returns what a rank calls before it computes: it waits as the launcher of this process said.

    Args:
        folder: of the run.
        rank: of this process.
        update: returns the number of updates before this one.
    """
    path = folder / LAUNCHED
    if not path.exists():
        return lambda: None
    delays: Delays = load_pickled(path)
    return lambda: time.sleep(delays(rank, update()))
