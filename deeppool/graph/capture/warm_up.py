"""A warm-up capture: what it loads and caches is two fifths of what the first capture of a process takes."""

import torch
from torch import nn

from deeppool.graph.capture.capture import capture


def warm_up() -> None:
    """Captures a small model, for processes that are forked from this one; leaves no thread and draws no number.

    Not where torch can use GPUs: an export asks the driver for devices, and no process that is forked later could.
    """
    if torch.backends.cuda.is_built():
        return
    with torch.random.fork_rng(devices=()):
        capture(nn.Linear(2, 2), (2,))
