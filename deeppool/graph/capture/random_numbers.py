"""Refusal of random numbers that a graph would not draw as the code does that it is captured from.

A graph repeats for ever what Python or NumPy drew during the export, sets no seed, and keeps a generator of the code's
own from one run to the next.
"""

import contextlib
import random
import threading
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import fx

from deeppool.errors import CaptureError

SEEDS = ("manual_seed", "seed", "set_state")
"""What sets the state of a generator, as ``torch.manual_seed`` and ``torch.random.fork_rng`` call it."""
REMEDY = "draw by torch, for each sample, without a seed: x.new_empty(x.shape[0], 1).bernoulli_(0.9)"


@contextlib.contextmanager
def drawing_by_torch(what: str) -> Iterator[None]:
    """Raises if what runs draws random numbers of Python or NumPy, or sets the state of torch's."""
    functions = vars(torch.random)
    host, noted = _host_state(), _NotingGenerator(functions["default_generator"])
    functions["default_generator"] = noted
    try:
        yield
    finally:
        functions["default_generator"] = noted.generator
    if _host_state() != host:
        raise CaptureError(
            f"{what} draws random numbers of Python or NumPy, of which a graph would repeat the first ones for ever "
            f"({REMEDY})"
        )
    if noted.seeded:
        raise CaptureError(
            f"{what} sets the state of torch's random numbers, as torch.manual_seed and torch.random.fork_rng do, and "
            f"no graph does ({REMEDY})"
        )


class _NotingGenerator:
    """torch's generator, as its functions call it; notes whether they set its state in the thread that made this."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator, self.seeded, self._thread = generator, False, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        self.seeded |= name in SEEDS and threading.get_ident() == self._thread
        return getattr(self.generator, name)


def _host_state() -> object:
    """Returns what changes when Python or NumPy draw random numbers."""
    numpy = np.random.get_state(legacy=False)["state"]
    return random.getstate(), numpy["pos"], numpy["key"].tobytes()


def check_generators(program: fx.GraphModule, name: str) -> None:
    """Raises for a program that draws from another generator than torch's own."""
    for node in program.graph.find_nodes(op="get_attr"):
        if isinstance(attrgetter(str(node.target))(program), torch.Generator):
            raise CaptureError(
                f"{name} draws from a torch.Generator of its own, of which every rank and copy would have another one "
                f"({REMEDY})"
            )
