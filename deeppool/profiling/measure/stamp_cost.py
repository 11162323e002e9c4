"""What a time stamp inside a graph costs: the next kernel begins when the one before it has ended and was stamped."""

import torch

from deeppool.device.protocol import Device
from deeppool.profiling.measure.sampling import typical

KERNELS = 64
"""Short kernels of a graph."""
REPLAYS = 20


def stamp_seconds(device: Device) -> float:
    """Returns the seconds that a stamp between two kernels of a graph adds, from many short kernels with and without.

    Args:
        device: a device with graphs, selected.
    """
    counter = torch.zeros(1, device=device.torch_device())

    def count(*, stamped: bool) -> None:
        for _ in range(KERNELS):
            counter.add_(1)
            if stamped:
                stamps.append(device.stamp())

    stamps: list[object] = []
    graphs = device.repeatable(lambda: count(stamped=False), lambda: count(stamped=True))
    times: list[list[float]] = [[], []]
    for _ in range(REPLAYS):
        for graph, found in zip(graphs, times, strict=True):
            before = device.stamp()
            graph()
            after = device.stamp()
            device.synchronize()
            found.append(device.seconds(before, after))
    without, stamped = map(typical, times)
    return max(0.0, stamped - without) / KERNELS
